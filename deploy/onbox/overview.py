"""What a box says of itself: its runs, its disks, its keeper, its hours; in short for a look at many."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from typing import Any

from .disks import disk
from .keeper_status import revive, said
from .ledger import read_ledger
from .life import keeper_folder
from .places import Places, find_places, own_folder
from .publish import read_json
from .runs import ALIVE, WAITING, list_runs, record, run_ids
from .steps import checkpoint_steps

GOES_ON = ALIVE + WAITING
HOURS = 36  # of the ledger: the laptop sums up the day of its own time zone
LARGE = ("requirements", "packages")  # of a run.json


def overview(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: what `write_overview` last wrote is read without us; this is for boxes without it."""
    revive()
    places = find_places(request)
    return summed_up(places, of_interest(list_runs(places)))


def of_interest(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs that are alive or wait, and the newest one."""
    whole = [each for each in runs if not each.get("damaged")]
    kept = [each for each in whole[:-1] if each["mine"] and each["state"]["state"] in GOES_ON]
    return kept + whole[-1:]


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
    """The form in which a box is described, with all of its runs or with some of them."""
    mine = [each["state"]["state"] for each in runs if each.get("mine")]
    return {
        "now": time.time(),
        "notes": places.notes,
        "runs": [summary(each) for each in runs],
        "alive": sum(state in ALIVE for state in mine),
        "waiting": sum(state in WAITING for state in mine),
        "keeper": said(survives),
        "hours": recent_hours(),
        "disks": {name: disk(getattr(places, name)) for name in ("data", "input", "runs")},
    }


def summary(each: dict[str, Any]) -> dict[str, Any]:
    """One run without what is large: its lists of packages."""
    if each.get("damaged"):
        return each
    run = {key: value for key, value in each["run"].items() if key not in LARGE}
    steps = checkpoint_steps(each["folder"])
    return {**each, "run": run, "checkpoints": steps[-3:], "home": home_of(each["folder"])}


def home_of(folder: str) -> Any:
    """What a laptop said that it has of this run; None where nobody did."""
    try:
        return read_json(os.path.join(folder, "home.json"))
    except (OSError, ValueError):
        return None


def survives(armed: dict[str, Any]) -> bool:
    return _survives(json.dumps(armed, sort_keys=True), int(time.monotonic() // 3600))


@functools.lru_cache(maxsize=2)
def _survives(armed: str, hour: int) -> bool:
    """Asked of systemd or cron, which costs a process: once an hour is enough for an overview."""
    from .arming import after_reboot

    return after_reboot(json.loads(armed))


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
