"""How far a run is: its newest checkpoint, its first step, and the mark of this boot."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

from .locks import boot_id, process_start
from .runs import read_progress, read_run

STEP = re.compile(r"step_([0-9]{8,})")


def boot_mark() -> str:
    """This boot of this system: a container that was stopped and started keeps its host's boot
    id, but its first process is another one."""
    return f"{boot_id()}/{process_start(1)}"


def checkpoint_steps(folder: str) -> list[int]:
    """The steps that have a published folder, ascending."""
    with contextlib.suppress(OSError):
        names = map(STEP.fullmatch, os.listdir(os.path.join(folder, "output", "checkpoints")))
        return sorted(int(name.group(1)) for name in names if name)
    return []


def newest_step(folder: str) -> int:
    """The newest published checkpoint's step; -1 without one.

    Of several workers only the chief writes checkpoints: the others count their heartbeat's.
    """
    steps = checkpoint_steps(folder)
    if steps or not is_follower(folder):
        return (steps or [-1])[-1]
    return int((read_progress(folder) or {}).get("step", -1))


def is_follower(folder: str) -> bool:
    """True for a run of several workers that is not the chief's."""
    with contextlib.suppress(OSError, ValueError):
        return bool((read_run(folder).get("worker") or {}).get("index"))
    return False


def first_step_seconds(folder: str, state: dict[str, Any]) -> float | None:
    """Seconds from the start of the program to its first step; None while there was none.

    A progress.json that an earlier attempt left does not count.
    """
    path = os.path.join(folder, "output", "progress.json")
    running_since = float(state["since"])
    try:
        written = os.stat(path).st_mtime
    except OSError:
        return None
    progress = read_progress(folder)
    if progress is None or written < running_since - 1:
        return None
    if "first_step_seconds" in progress:
        if progress["first_step_seconds"] is None and progress.get("phase") != "done":
            return None
        return max(0.0, written - running_since)
    if int(progress.get("step", 0)) > max(0, int(state.get("step_before", 0))):
        return max(0.0, written - running_since)
    return None
