"""Uploads and staging against the usual tools, both sides in one run: `python -m bench.transfer`.

    --quick   20,000 small files instead of 100,000, and fewer repetitions
    --only    scenarios, or the beginnings of their names, with commas between; the names:
{names}
    --json    figures as JSON        --check   exit 1 where a target is missed
    --out     a file that keeps the figures; what it has of other scenarios stays in it
Needs root (namespaces, mounts), sshd, rsync, rclone, a C compiler and libfuse3.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from bench import stagings, uploads
from bench.grounds import as_json
from bench.targets import shortfalls

SCENARIOS: dict[str, Callable[..., None]] = {
    **uploads.SCENARIOS,
    **stagings.SCENARIOS,
}


def main() -> int:
    about = (__doc__ or "").replace("{names}", "              " + ", ".join(SCENARIOS))
    ask = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--only", default="")
    ask.add_argument("--json", action="store_true")
    ask.add_argument("--check", action="store_true")
    ask.add_argument("--out", type=Path)
    asked = ask.parse_args()
    figures: dict[str, float] = {}

    def note(name: str, value: float, unit: str = "") -> None:
        figures[name] = value
        print(f"{name:55} {value:12.4g} {unit}", file=sys.stderr, flush=True)

    for scenario in chosen(asked.only, SCENARIOS):
        SCENARIOS[scenario](asked.quick, note)
        if asked.out:
            keep(asked.out, figures)
    if asked.json:
        print(as_json(figures))
    missed = shortfalls(figures)
    print("\n".join(missed), file=sys.stderr)
    return 1 if asked.check and missed else 0


def chosen(only: str, names: Iterable[str]) -> list[str]:
    """Those whose names begin with one of `only`; all of them where it is empty."""
    starts = tuple(only.split(","))
    found = [name for name in names if name.startswith(starts)]
    if not found:
        raise SystemExit(f"--only {only}: there is {', '.join(names)}")
    return found


def keep(path: Path, figures: dict[str, float]) -> None:
    """Write the figures over those of the same names in a file of results."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(as_json({**known, **{name: round(v, 4) for name, v in figures.items()}}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
