"""Waits for a run's first step, its end, or a place in the queue, and tells how far it is."""

from __future__ import annotations

import os
import time
from typing import Any

from .output import end_of, tail
from .places import Places
from .runs import ENDED, read_progress, read_run, read_state, run_folder, supervisor_pid

PATIENCE = 20.0  # seconds for a program that neither prints nor writes a progress.json
LONG_PATIENCE = 600.0  # of the bundled workload, which will: a GPU box may take long to start it
SETTLED = 4.0  # seconds after a program's first output in which it may still fail at its start
PERIOD = 0.05
VANISHED = 30.0  # seconds that a new supervisor may take to claim its run on a busy box


def wait_for_first_step(places: Places, run_id: str, wire: Any) -> dict[str, Any]:
    """Ends with `outcome`: first-step, ended, queued, unsupervised; and of a program that reports no
    steps output (it prints) or silent."""
    folder = run_folder(places, run_id)
    told, began, printed = "", time.monotonic(), None
    ours = list(read_run(folder)["command"])[1:3] == ["-m", "workload"]
    while True:
        state = read_state(folder)
        told = _tell(wire, state, told)
        now = time.monotonic()
        if printed is None and _has_printed(folder, state):
            printed = now
        outcome = _outcome(places, run_id, folder, state, now - began)
        if not outcome and state["state"] == "running" and read_progress(folder) is None:
            since = None if printed is None else now - printed
            outcome = stepless(time.time() - state["since"], since, ours)
        if outcome:
            return report(run_id, folder, read_state(folder), outcome)
        time.sleep(PERIOD)


def _tell(wire: Any, state: dict[str, Any], told: str) -> str:
    now = f"{state['state']} {state.get('doing', '')}".strip()
    if now != told:
        wire.event(state=state["state"], doing=state.get("doing", ""))
    return now


def _outcome(places: Places, run_id: str, folder: str, state: dict[str, Any], waited: float) -> str:
    supervised = bool(supervisor_pid(places, run_id))
    if state["state"] in ENDED and not supervised:
        return "ended" if state.get("ending") or state["state"] == "finished" else ""
    if state["state"] == "queued" and not supervised and waited > 1:
        return "queued"
    running = state["state"] == "running"
    if running and state.get("first_step_at", 0) >= state.get("attempt_at", 1):
        return "first-step"
    if state["state"] not in ENDED and not supervised and waited > VANISHED:
        return "unsupervised"
    return ""


def _has_printed(folder: str, state: dict[str, Any]) -> bool:
    """The program has put out anything since it was started."""
    base = (state.get("handle") or {}).get("base")
    return base is not None and end_of(os.path.join(folder, "logs")) > base


def stepless(running: float, printed: float | None, ours: bool = False) -> str:
    """What to say of a program without progress.json that runs for `running` seconds and put out
    its first line `printed` seconds ago (None: none yet); "" while it may still tell a step. Pure."""
    if printed is not None and not ours:
        return "output" if printed > SETTLED else ""
    return "silent" if running > (LONG_PATIENCE if ours else PATIENCE) else ""


def report(run_id: str, folder: str, state: dict[str, Any], outcome: str) -> dict[str, Any]:
    """What the laptop shows: the state, how long each phase took, and the last lines if it ended."""
    found: dict[str, Any] = {"id": run_id, "folder": folder, "outcome": outcome, "state": state}
    found["progress"] = read_progress(folder)
    if outcome in ("ended", "unsupervised", "silent", "output"):
        found["tail"] = tail(os.path.join(folder, "logs"))
    return found
