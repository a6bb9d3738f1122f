"""`fab status`: what runs on a box, how far it is, and what it did before; also when it is off."""

from __future__ import annotations

import time
from typing import Any

from deploy.effects.copies import keep_copy, last_copy
from deploy.errors import ConnectError, LinkLost
from deploy.plan.keeper import status_line
from deploy.plan.quantities import show_duration, show_size, show_time
from deploy.plan.run import phases_line, progress_line, state_line
from deploy.verbs.desk import Desk


def status(desk: Desk, run: str = "") -> list[dict[str, Any]]:
    """What each box says; of one that does not answer the last that it said, and when."""
    results = []
    for name in desk.hosts:
        at, fault = time.time(), ""
        try:
            with desk.open(name) as box:
                found = box.call("status", run=run)
            keep_copy(name, "status.json", found)
        except (ConnectError, LinkLost) as no:
            copy = last_copy(name, "status.json")
            if copy is None:
                raise
            at, found = copy
            fault = no.message
            desk.show.warn(f"{fault}; what it said at {show_time(at, time.time())}:")
        show_status(desk, name, found, bool(run), at if fault else found["now"])
        head = {"box": name, "answered": not fault, "fault": fault.removeprefix(f"{name}: ")}
        results.append({**head, "at": at, **found})
    return results


def show_status(desk: Desk, name: str, found: dict[str, Any], one: bool, now: float) -> None:
    """The table of runs, newest first, or one run in full."""
    if one and found["runs"]:
        desk.show.table(["", name], rows_of_run(found["runs"][0], now))
        for line in found.get("tail", []):
            desk.show.note(line)
        return
    rows = [row_of_run(each, now) for each in reversed(found["runs"][-15:])]
    desk.show.table(["run", "state", "progress", "since"], rows, title=name)
    if not rows:
        desk.show.note("no runs yet")
    free = ", ".join(f"{key} {show_size(disk['free'])}" for key, disk in found["disks"].items())
    desk.show.note(f"free: {free}")
    if found.get("keeper"):
        line = status_line(found["keeper"], now)
        (desk.show.note if found["keeper"]["armed"] else desk.show.warn)(line)


def row_of_run(each: dict[str, Any], now: float) -> tuple[str, str, str, str]:
    if each.get("damaged"):
        return each["id"], "damaged", each["damaged"], ""
    state = each["state"]
    said = state_line(state)
    if state["state"] in ("staging", "running", "stopping") and each["mine"]:
        said += "" if each["supervised"] else " (nothing watches over it: the keeper will)"
    return each["id"], said, progress_line(each["progress"]), _ago(state["since"], now)


def _ago(moment: float, now: float) -> str:
    return show_duration(max(0.0, now - moment))


def rows_of_run(each: dict[str, Any], now: float) -> list[tuple[str, str]]:
    """One run's table: everything that run.json and state.json say to a person."""
    run, state = each["run"], each["state"]
    data = run.get("data") or {}
    rows = [
        ("run", each["id"]),
        ("state", f"{state_line(state)}, for {_ago(state['since'], now)}"),
        ("progress", progress_line(each["progress"])),
        ("phases", phases_line(state.get("phases") or {})),
        ("command", " ".join(run["command"])),
        ("runner", f"{run['runner']} on the {run['device']}"),
        ("GPUs", ", ".join(state.get("gpus") or [])),
        ("data", f"{data.get('name', '')} {data.get('version', '')}".strip()),
        ("image", str(run.get("image") or "")),
        ("commit", _commit(run)),
        ("checkpoints", ", ".join(f"step {step}" for step in each["checkpoints"])),
        ("at home", f"step {each['home']['step']}" if each.get("home") else "nothing"),
        ("folder", each["folder"]),
    ]
    return [row for row in rows if row[1]]


def _commit(run: dict[str, Any]) -> str:
    if not run.get("commit"):
        return ""
    return str(run["commit"])[:12] + (
        "" if run.get("clean") else " and changes that are not committed"
    )
