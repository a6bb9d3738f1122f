"""Starts a run again by the user's word, also one that another box has begun."""

from __future__ import annotations

import os
from typing import Any

from .deploylock import release_early
from .launch import start_run
from .locks import DEAD_AFTER, clock_of
from .places import Places, find_places
from .publish import write_json
from .refusal import Refusal
from .runs import (
    ENDED,
    box_identity,
    change_state,
    claim,
    pick_run,
    read_run,
    read_state,
    run_folder,
)
from .starts import refuse_while_stopping
from .waiting import wait_for_first_step


def resume(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: start a run again that was stopped, interrupted or failed; it goes on where it was.

    `hosts`  of one of several workers: all their addresses as they are now
    """
    refuse_while_stopping()
    places = find_places(request)
    run_id = pick_run(places, request.get("run", ""))
    folder = run_folder(places, run_id)
    with claim(places, run_id) as ours:
        if ours:
            take_over(places, folder)
            meet_again(folder, request.get("hosts"))
            if read_state(folder)["state"] in ENDED:
                change_state(folder, "queued", tries=0, waits_for="resumed by the user")
    start_run(places, run_id)
    release_early(request)
    if not request.get("wait"):
        return {"id": run_id, "folder": folder}
    return wait_for_first_step(places, run_id, wire)


def meet_again(folder: str, hosts: list[str] | None) -> None:
    """Note where the workers are now ("address:port", the chief first), if that has changed."""
    run = read_run(folder)
    if hosts and run["worker"]["hosts"] != hosts:
        run["worker"]["hosts"] = hosts
        write_json(os.path.join(folder, "run.json"), run)


def take_over(places: Places, folder: str) -> None:
    """Make a run of another box ours, where that box is gone; Busy where it still gives signs of
    life: two boxes may share /data."""
    run, state = read_run(folder), read_state(folder)
    if run["identity"] == box_identity(places):
        return
    beat = os.stat(os.path.join(folder, "state.json")).st_mtime
    silent = clock_of(places.runs) - beat
    if state["state"] not in ENDED and silent < DEAD_AFTER:
        raise Refusal(
            "Busy",
            f"{run['id']} is {state['state']} on another box ({run['identity']})",
            f"stop it there, or wait until it has been silent for {DEAD_AFTER:.0f} s",
        )
    mine = dict(zip(("data", "input", "runs", "home"), places))
    write_json(
        os.path.join(folder, "run.json"),
        {**run, "identity": box_identity(places), "places": mine},
    )
