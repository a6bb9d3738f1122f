"""Uploads and staging against the usual tools, both sides in one run: `python -m bench.transfer`.

    --quick   20,000 small files instead of 100,000, and one repetition
    --only    uploads, unchanged, staging, plan: parts of it, with commas between
    --json    figures as JSON        --check   exit 1 where a target is missed
Needs root (namespaces, mounts), sshd, rsync, rclone, a C compiler and libfuse3.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import stagings, uploads
from bench.grounds import as_json
from bench.targets import shortfalls

PARTS = ("uploads", "unchanged", "staging", "plan")


def main() -> int:
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--only", default=",".join(PARTS))
    ask.add_argument("--json", action="store_true")
    ask.add_argument("--check", action="store_true")
    ask.add_argument("--out", type=Path, help="also write the figures there")
    asked = ask.parse_args()
    figures: dict[str, float] = {}

    def note(name: str, value: float, unit: str = "") -> None:
        figures[name] = value
        print(f"{name:55} {value:12.4g} {unit}", file=sys.stderr, flush=True)

    only = asked.only.split(",")
    if "uploads" in only:
        uploads.uploads(asked.quick, note)
    if "unchanged" in only:
        uploads.unchanged(asked.quick, note)
    if "staging" in only:
        stagings.stagings(asked.quick, note)
    if "plan" in only:
        uploads.million(asked.quick, note)
    if asked.json:
        print(as_json(figures))
    if asked.out:
        asked.out.write_text(as_json(figures) + "\n")
    missed = shortfalls(figures)
    print("\n".join(missed), file=sys.stderr)
    return 1 if asked.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
