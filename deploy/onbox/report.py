"""What a box tells about its runs: status, output, and the removal of a run's folder."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

from .keeper_status import revive
from .outlook import will_go_on
from .output import end_of, read_all, tail
from .overview import summed_up
from .places import find_places
from .refusal import Refusal
from .runs import ENDED, claim, list_runs, pick_run, read_state, run_folder

CHUNK = 32 << 10
PERIOD = 0.2


def status(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: all runs (or `run`, with its last lines), room on the disks, the keeper's own words."""
    revive()
    places = find_places(request)
    found = summed_up(places, list_runs(places))
    if request.get("run"):
        run_id = pick_run(places, request["run"])
        found["runs"] = [each for each in found["runs"] if each["id"] == run_id]
        found["tail"] = tail(os.path.join(run_folder(places, run_id), "logs"), 20)
    return found


def logs(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: output as events {at, text, next}, from `offset` or the last `lines`, until the end of
    the output or, with `follow`, of the run. An interrupted run that the keeper will resume is not
    at its end: {waits: why} is said once."""
    places = find_places(request)
    run_id = pick_run(places, request.get("run", ""))
    folder = run_folder(places, run_id)
    at = int(request.get("offset", -1))
    if at < 0:
        at = _start_of_tail(os.path.join(folder, "logs"), int(request.get("lines", 100)))
    said = ""
    while True:
        state = read_state(folder)
        at = _send_from(os.path.join(folder, "logs"), at, wire)
        waits = will_go_on(state)
        if not request.get("follow") or (state["state"] in ENDED and not waits):
            return {"id": run_id, "state": read_state(folder), "next": at}
        if waits and _why(state) != said:
            said = _why(state)
            wire.event(waits=said)
        time.sleep(PERIOD)


def _why(state: dict[str, Any]) -> str:
    return str((state.get("ending") or {}).get("text", ""))


def _start_of_tail(logs_folder: str, lines: int) -> int:
    """The offset at which the last `lines` lines begin."""
    end = end_of(logs_folder)
    data = b""
    for _, piece in read_all(logs_folder, max(0, end - (1 << 20))):
        data += piece
    begin = end - len(data)
    cut = len(data)
    for _ in range(lines + 1):
        found = data.rfind(b"\n", 0, max(0, cut))
        if found < 0:
            return begin
        cut = found
    return begin + cut + 1


def _send_from(logs_folder: str, at: int, wire: Any) -> int:
    for begin, data in read_all(logs_folder, at, CHUNK):
        if begin > at:
            wire.event(at=at, next=begin, dropped=begin - at)
        text = data.decode("utf-8", "backslashreplace")
        at = begin + len(data)
        wire.event(at=begin, next=at, text=text)
    return at


def remove(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: delete a run's folder; refused while it is alive or waits to be resumed."""
    places = find_places(request)
    run_id = pick_run(places, request["run"])
    folder = run_folder(places, run_id)
    with claim(places, run_id) as ours:
        state = read_state(folder)["state"]
        if not ours or state not in ENDED:
            raise Refusal("Busy", f"{run_id} is {state}", f"fab stop --run {run_id}")
        freed = size_of(folder)
        grave = os.path.join(places.runs, ".old-" + run_id)
        os.rename(folder, grave)
        shutil.rmtree(grave, ignore_errors=True)
    return {"id": run_id, "freed": freed}


def size_of(folder: str) -> int:
    """Bytes that a folder takes on its disk."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                continue
    return total
