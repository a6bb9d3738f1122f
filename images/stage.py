"""Stages a data set inside the container, for `docker compose up` by hand: `stage.py NAME`.

/data is the network disk, /input the fast one; the code is the box side's own. Exit code 66: there
is no such data set, or it is not whole.
"""

from __future__ import annotations

import importlib
import sys

NO_INPUT = 66  # EX_NOINPUT


def main(name: str) -> int:
    """Copy the current version, or learn that it is there; one line on stderr either way."""
    sys.path.insert(0, "/opt/gpubox")
    places = importlib.import_module("onbox.places")
    refusal = importlib.import_module("onbox.refusal")
    stage = importlib.import_module("onbox.stage")
    here = places.Places("/data", "/input", "/data/runs", places.own_folder(), [])
    try:
        found = stage.stage_set(here, name, "current", stage.silent)
    except refusal.Refusal as no:
        print(f"gpubox: {no.message}; {no.hint}", file=sys.stderr)
        return NO_INPUT
    what = "there already" if found["already"] else f"staged in {found['seconds']:.1f} s"
    print(f"gpubox: {name}: {found['files']} files, {what}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
