"""PURE: what of a run is to come home, and which names from a box may be written here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from deploy.errors import UsageError, VerifyError
from deploy.plan.quantities import parse_duration

STEP = re.compile(r"step_[0-9]{8,}")
FOLLOW_EVERY = 30.0  # seconds between two looks with --follow


def choice(best: bool, last: bool, every_step: bool, logs_only: bool) -> str:
    """The `which` of the request: last (also by itself), best, all or none."""
    chosen = [
        name
        for name, on in [("best", best), ("last", last), ("all", every_step), ("none", logs_only)]
        if on
    ]
    if len(chosen) > 1:
        raise UsageError("--best, --last, --all and --logs-only exclude each other", "give one")
    return chosen[0] if chosen else "last"


def interval(every: str) -> float:
    """Seconds of `--every 5m`."""
    try:
        return max(1.0, parse_duration(every)) if every else FOLLOW_EVERY
    except ValueError as no:
        raise UsageError(f"--every: {no}", "") from no


def safe_path(path: str) -> str:
    """A relative path from a box that stays in the folder it is joined to; VerifyError else."""
    parts = path.split("/")
    bad = path.startswith("/") or "\\" in path or "\0" in path or ":" in parts[0]
    if bad or not path or any(part in ("", ".", "..") for part in parts):
        raise VerifyError(f"the box names a file {path!r} that would leave its folder", "")
    return path


def is_step(name: str) -> bool:
    return bool(STEP.fullmatch(name))


def newest(steps: Iterable[str]) -> str:
    """The name of the newest checkpoint; "" without one."""
    return max((s for s in steps if is_step(s)), key=lambda s: int(s[5:]), default="")


def make_room(passing: Iterable[str], steps: Iterable[str], best: str, keep: int) -> list[str]:
    """Which checkpoints at home give way to newer ones: of those that a plain fetch brought all
    but the newest `keep`, never the best, never the newest of all. 0 keeps all.

    passing  names of what came by a plain fetch; what was asked for by --all or --best stays
    steps    names of the whole checkpoints at home
    """
    there = sorted(set(passing) & set(steps), key=lambda step: int(step[5:]))
    old = there[:-keep] if keep else []
    return [step for step in old if step not in (best, newest(steps))]


def summary(got: dict[str, Any]) -> str:
    """`step_00001200 came home (38.9 MiB); 2 kept` for what one fetch did."""
    from deploy.plan.quantities import show_size

    parts = []
    if got["steps"]:
        parts.append(f"{', '.join(got['steps'])} came home ({show_size(got['bytes'])})")
    if got["kept"]:
        parts.append(f"{len(got['kept'])} home already")
    for step, why in got["dropped"].items():
        parts.append(f"{step} dropped: {why}")
    if got.get("removed"):
        parts.append(f"{len(got['removed'])} older made room (fetch.keep)")
    if got["files"]:
        parts.append(f"{len(got['files'])} other files brought up to date")
    return "; ".join(parts) or "nothing new"
