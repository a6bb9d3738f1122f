"""Looks after all runs of this box: starts queued ones, resumes interrupted ones, takes over orphans."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from .places import Places
from .queueing import parse_gpus, plan_queue
from .runs import ALIVE, WAITING, list_runs, supervisor_pid
from .starts import stopping
from .steps import boot_mark

PAUSES = (0.0, 30.0, 120.0, 600.0, 1800.0)  # seconds before each try that made no new step
TRIES = len(PAUSES)
# Whoever stopped it then is about to switch the box off: the run goes on at the next boot only.
UNTIL_NEXT_BOOT = ("idle", "pre-emption", "the shutdown", "down")
SWITCHED_OFF = ("idle", "down")  # of these, who leaves the box off until someone starts it


def resume_verdict(state: dict[str, Any], now: float, mark: str) -> tuple[bool, str]:
    """Whether an interrupted run is to be started again now, and why (or why not). Pure."""
    tries = int(state.get("tries", 0))
    if tries >= TRIES:
        return False, f"given up after {tries} tries without a new step; fab resume starts it"
    text = (state.get("ending") or {}).get("text", "")
    if state.get("boot") == mark and any(f"by {by}" in text for by in UNTIL_NEXT_BOOT):
        return False, "the box is about to be switched off; it goes on after the next start"
    pause = PAUSES[tries]
    left = state["since"] + pause - now
    # A clock that was set back must not keep it waiting for ever.
    if 0 < left <= pause:
        return False, f"try {tries + 1} of {TRIES} in {left:.0f} s"
    return True, f"resume: try {tries + 1} of {TRIES}"


def goes_on(state: dict[str, Any], now: float, mark: str) -> bool:
    """Whether a run that is interrupted will be started again by itself, now, after a pause or at
    the next boot that a reboot brings; not where somebody switches the box off. Pure."""
    if state["state"] != "interrupted":
        return False
    text = (state.get("ending") or {}).get("text", "")
    if any(f"by {by}" in text for by in SWITCHED_OFF) and state.get("boot") == mark:
        return False
    due, why = resume_verdict(state, now, mark)
    return due or not why.startswith("given up")


def tend(places: Places, now: float | None = None) -> list[dict[str, Any]]:
    """Start what is due; returns {id, why} for each run that was started. Cheap when all is well."""
    from .launch import start_run  # large: the keeper, which lives long, does without it

    if stopping():
        return []
    runs = [each for each in list_runs(places) if not each.get("damaged") and each["mine"]]
    started = []
    for each in runs:
        why = _due(places, each, time.time() if now is None else now)
        if why:
            started.append({"id": each["id"], "why": why})
    for run_id, why in _from_the_queue(places, runs):
        started.append({"id": run_id, "why": why})
    for each in started:
        with contextlib.suppress(OSError):
            start_run(places, each["id"])
    return started


def _due(places: Places, each: dict[str, Any], now: float) -> str:
    state = each["state"]
    if supervisor_pid(places, each["id"]):
        return ""
    if state["state"] in ALIVE:
        return "its supervisor is gone"
    if state["state"] == "interrupted":
        due, why = resume_verdict(state, now, boot_mark())
        return why if due else ""
    return ""


def _from_the_queue(places: Places, runs: list[dict[str, Any]]) -> list[tuple[str, str]]:
    waiting = [
        (each["id"], parse_gpus(each["run"]["gpus"] if each["run"]["device"] == "gpu" else "none"))
        for each in runs
        if each["state"]["state"] in WAITING and not supervisor_pid(places, each["id"])
    ]
    if not waiting:
        return []
    from .leases import cards, taken

    found = cards()
    plan = plan_queue(waiting, found, taken(found))
    return [(run_id, f"start: {v.why}") for run_id, v in plan if v.gpus is not None]
