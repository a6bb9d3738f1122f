"""Waits for a run's first step, its end, or a place in the queue, and tells how far it is."""

from __future__ import annotations

import os
import time
from typing import Any

from .output import tail
from .places import Places
from .runs import ENDED, read_progress, read_state, run_folder, supervisor_pid

PATIENCE = 45.0  # seconds for a program that writes no progress.json
PERIOD = 0.1
VANISHED = 30.0  # seconds that a new supervisor may take to claim its run on a busy box


def wait_for_first_step(places: Places, run_id: str, wire: Any) -> dict[str, Any]:
    """Ends with `outcome`: first-step, ended, queued, silent (no progress told), unsupervised."""
    folder = run_folder(places, run_id)
    told, began = "", time.monotonic()
    while True:
        state = read_state(folder)
        told = _tell(wire, state, told)
        outcome = _outcome(places, run_id, folder, state, time.monotonic() - began)
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
    if running and time.time() - state["since"] > PATIENCE and read_progress(folder) is None:
        return "silent"
    if state["state"] not in ENDED and not supervised and waited > VANISHED:
        return "unsupervised"
    return ""


def report(run_id: str, folder: str, state: dict[str, Any], outcome: str) -> dict[str, Any]:
    """What the laptop shows: the state, how long each phase took, and the last lines if it ended."""
    found: dict[str, Any] = {"id": run_id, "folder": folder, "outcome": outcome, "state": state}
    found["progress"] = read_progress(folder)
    if outcome in ("ended", "unsupervised", "silent"):
        found["tail"] = tail(os.path.join(folder, "logs"))
    return found
