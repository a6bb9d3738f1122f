"""Ends runs: the reason is written first, then the signal is sent, then the end is waited for."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from typing import Any

from .places import Places, find_places
from .publish import write_json
from .refusal import Refusal
from .runs import (
    ALIVE,
    ENDED,
    change_state,
    claim,
    list_runs,
    pick_run,
    read_intent,
    read_run,
    read_state,
    run_folder,
    supervisor_pid,
)

MARGIN = 30.0  # seconds beside the grace: the engine's own way, and the last copy of the output


def write_intent(folder: str, by: str, then: str, grace: float | None = None) -> dict[str, Any]:
    """Who wants a run to stop, and into which state (`stopped` or `interrupted`).

    On a full disk half of the run's reserve makes room for it: the rest is for its last state.
    """
    intent: dict[str, Any] = {"schema": 1, "by": by, "then": then, "at": time.time()}
    if grace is not None:
        intent["grace"] = grace
    path = os.path.join(folder, "intent.json")
    try:
        write_json(path, intent)
    except OSError as no:
        if no.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with contextlib.suppress(OSError):
            os.truncate(reserve_path(folder), os.path.getsize(reserve_path(folder)) // 2)
        write_json(path, intent)
    return intent


def reserve_path(folder: str) -> str:
    """A file that is there to be deleted where the disk is full."""
    return os.path.join(folder, "logs", "reserve")


def give_up_reserve(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(reserve_path(folder))


def drop_intent(folder: str) -> None:
    """It has been carried out, or came too late."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, "intent.json"))


def stop_at_once(folder: str) -> bool:
    """End a run that nothing runs for, as its intent says; the caller holds its claim."""
    intent = read_intent(folder)
    if intent is None:
        return False
    if read_state(folder)["state"] not in ENDED:
        text = "{then} by {by} before it began".format(**intent)
        change_state(folder, intent["then"], ending={"kind": "stopped", "text": text})
    drop_intent(folder)
    return True


def stop_run(
    places: Places, run_id: str, by: str, then: str, grace: float | None = None
) -> dict[str, Any]:
    """Stop a run and wait for its end; returns its state, whatever that was.

    by     who: "the user", "idle", "the money cap", …
    then   `stopped`, or `interrupted` where it is to be resumed by itself later
    grace  seconds from SIGTERM to SIGKILL; the run's own if None
    """
    folder = run_folder(places, run_id)
    state = read_state(folder)
    if state["state"] in ENDED:
        if state["state"] == "interrupted" and then == "stopped":
            return _stop_resuming(places, run_id, folder, by)
        return state
    write_intent(folder, by, then, grace)
    wait = float(read_run(folder)["stop_grace"] if grace is None else grace) + MARGIN
    deadline = time.monotonic() + wait
    signalled = 0
    while time.monotonic() < deadline:
        state = read_state(folder)
        if state["state"] in ENDED and read_intent(folder) is None:
            return state
        pid = supervisor_pid(places, run_id)
        if pid and pid != signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            signalled = pid
        elif not pid:
            _without_supervisor(places, run_id, folder)
        time.sleep(0.1)
    hint = "fab stop --now" if grace is None else "fab shell, and see what its processes wait for"
    raise Refusal("RunFailed", f"{run_id} did not stop within {wait:.0f} s", hint)


def _stop_resuming(places: Places, run_id: str, folder: str, by: str) -> dict[str, Any]:
    """An interrupted run that is not to be resumed any more."""
    with claim(places, run_id) as ours:
        state = read_state(folder)
        if ours and state["state"] == "interrupted":
            ending = {"kind": "stopped", "text": f"stopped by {by} while it was interrupted"}
            return change_state(folder, "stopped", ending=ending)
    return stop_run(places, run_id, by, "stopped")


def _without_supervisor(places: Places, run_id: str, folder: str) -> None:
    """Nothing runs it: end it here, or give it a supervisor that finds what it left alive."""
    with claim(places, run_id) as ours:
        if not ours:
            return
        if read_state(folder)["state"] not in ALIVE:
            stop_at_once(folder)
            return
    from .launch import start_run

    start_run(places, run_id)
    time.sleep(1)


def living_run(places: Places, name: str) -> str:
    """The run that is meant: without a name the newest one that has not ended, if there is one."""
    if name in ("", "last"):
        living = [
            each["id"]
            for each in list_runs(places)
            if not each.get("damaged") and each["state"]["state"] not in ENDED
        ]
        if living:
            return str(living[-1])
    return pick_run(places, name)


def stop(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: stop one run; `grace` in seconds may be given."""
    places = find_places(request)
    run_id = living_run(places, request.get("run", ""))
    state = stop_run(places, run_id, request.get("by", "the user"), "stopped", request.get("grace"))
    return {"id": run_id, "state": state}
