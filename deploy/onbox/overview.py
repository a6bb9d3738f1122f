"""A box in a few lines, for a look at many at once: its run, its GPUs, its keeper, its money."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from typing import Any

from .keeper_status import said
from .ledger import read_ledger
from .life import keeper_folder
from .places import Places, find_places, own_folder
from .runs import ALIVE, WAITING, list_runs, record, run_ids

HOURS = 36  # of the ledger: the laptop sums up the day of its own time zone
RUN = ("command", "device", "gpus")
PROGRESS = ("step", "steps", "loss", "accuracy", "validation_accuracy", "eta_seconds", "time")


def overview(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: what `write_overview` last wrote is read without us; this is for boxes without it."""
    places = find_places(request)
    return summed_up(places, [each for each in list_runs(places) if not each.get("damaged")])


def write_overview(places: Places, live: list[dict[str, Any]]) -> None:
    """~/.gpubox/overview.json, an answer that any shell can give: the keeper writes it at every
    poll. Replaced by a rename, not synced: it is of no use after a power cut."""
    ids = run_ids(places)
    runs = list(live)
    if ids and ids[-1] not in [each["id"] for each in live]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            runs.append(record(places, ids[-1]))
    path = os.path.join(own_folder(), "overview.json")
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        json.dump({"schema": 1, "ok": summed_up(places, runs)}, file)
    os.replace(path + ".new", path)


def summed_up(places: Places, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The newest run that is alive, else the newest of all; counts; keeper; hours of money."""
    alive = [each for each in runs if each["state"]["state"] in ALIVE and each["mine"]]
    waiting = [each for each in runs if each["state"]["state"] in WAITING and each["mine"]]
    shown = (alive or waiting or runs)[-1:]
    keeper = said(survives)
    return {
        "now": time.time(),
        "run": short(shown[0]) if shown else None,
        "alive": len(alive),
        "waiting": len(waiting),
        "keeper": keeper,
        "hours": recent_hours(),
    }


def survives(armed: dict[str, Any]) -> bool:
    return _survives(json.dumps(armed, sort_keys=True), int(time.monotonic() // 3600))


@functools.lru_cache(maxsize=2)
def _survives(armed: str, hour: int) -> bool:
    """Asked of systemd or cron, which costs a process: once an hour is enough for an overview."""
    from .arming import after_reboot

    return after_reboot(json.loads(armed))


def short(each: dict[str, Any]) -> dict[str, Any]:
    progress = each.get("progress") or {}
    state = {key: each["state"].get(key) for key in ("state", "since", "ending", "waits_for")}
    run = {key: each["run"].get(key) for key in RUN}
    return {**run, "id": each["id"], **{key: progress.get(key) for key in PROGRESS}, "state": state}


def recent_hours() -> dict[str, list[float]]:
    """Seconds on and money, by hour (UTC), of the last HOURS."""
    first = time.strftime("%Y-%m-%dT%H", time.gmtime(time.time() - HOURS * 3600))
    hours: dict[str, list[float]] = {}
    for life in read_ledger(os.path.join(keeper_folder(), "ledger")):
        for hour, row in life["hours"].items():
            if hour >= first:
                on, cost = hours.get(hour, [0.0, 0.0])
                hours[hour] = [on + float(row["on"]), cost + float(row["cost"])]
    return hours
