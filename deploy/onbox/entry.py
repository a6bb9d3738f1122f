"""Stages a data set before the program in a container starts: `python3 -m onbox.entry`.

GPUBOX_DATASET  the set's name; empty: nothing to do
GPUBOX_DATA     where the network disk is mounted (/data)
GPUBOX_INPUT    where the fast disk is mounted (/input)
The folder to read from is printed on stdout, all else on stderr.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .manifest import check_name
from .places import Places, own_folder
from .refusal import Refusal
from .stage import stage_set


def main() -> int:
    name = os.environ.get("GPUBOX_DATASET", "")
    data = os.environ.get("GPUBOX_DATA") or "/data"
    fast = os.environ.get("GPUBOX_INPUT") or "/input"
    if not name:
        print(fast)
        return 0
    try:
        print(ensure_staged(name, data, fast))
        return 0
    except Refusal as no:
        sys.stderr.write(f"gpubox: {no.message}\n" + (f"  {no.hint}\n" if no.hint else ""))
    except OSError as no:
        sys.stderr.write(f"gpubox: staging {name}: {no}\n")
    return 74


def ensure_staged(name: str, data: str, fast: str) -> str:
    """The staged folder; what the deployer has staged already is taken as it is."""
    link = os.path.join(fast, name)
    brought = os.path.exists(os.path.join(data, name))
    if not check_name(name) and not brought and os.path.isdir(link):
        return os.path.realpath(link)
    places = Places(data, fast, os.path.join(data, "runs"), own_folder(), [])
    found = stage_set(places, name, "current", say)
    what = "there already" if found["already"] else "staged in {:.1f} s".format(found["seconds"])
    sys.stderr.write(f"gpubox: {name}: {found['files']} files, {what}\n")
    return str(found["path"])


def say(**fields: Any) -> None:
    if "note" in fields:
        sys.stderr.write(f"gpubox: {fields['note']}\n")


if __name__ == "__main__":
    sys.exit(main())
