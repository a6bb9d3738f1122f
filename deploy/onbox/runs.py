"""The runs of this box: their folders, what was asked (run.json), their states (state.json)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
import uuid
from typing import Any, Iterator

from .locks import boot_id, process_start
from .places import Places
from .publish import read_json, write_json
from .refusal import Refusal

SCHEMA = 1
ID = re.compile(r"[0-9]{8}-[0-9]{4}-[a-z0-9][a-z0-9-]{0,30}-[0-9a-f]{4}")

# state → the states that may follow it
NEXT: dict[str, tuple[str, ...]] = {
    "created": ("queued", "staging", "failed", "stopped", "interrupted"),
    "queued": ("queued", "staging", "failed", "stopped", "interrupted"),
    "staging": ("queued", "running", "stopping", "failed", "stopped", "interrupted"),
    "running": ("stopping", "finished", "failed", "stopped", "interrupted"),
    "stopping": ("finished", "failed", "stopped", "interrupted"),
    "interrupted": ("queued", "staging", "stopped", "failed"),
    "stopped": ("queued", "staging"),
    "failed": ("queued", "staging"),
    "finished": ("queued", "staging"),
}
WAITING = ("created", "queued")
ALIVE = ("staging", "running", "stopping")
ENDED = ("finished", "failed", "stopped", "interrupted")


def run_folder(places: Places, run_id: str) -> str:
    """The folder of a run; NoSuchRun for what is not the id of one that is here."""
    folder = os.path.join(places.runs, run_id)
    if not ID.fullmatch(run_id) or not os.path.isfile(os.path.join(folder, "run.json")):
        near = [each for each in run_ids(places) if run_id and run_id in each]
        hint = f"did you mean {near[-1]}?" if near else "`fab status` lists the runs"
        raise Refusal("NoSuchRun", f"no run {run_id!r} in {places.runs}", hint)
    return folder


def run_ids(places: Places) -> list[str]:
    """All ids, oldest first: they sort by time."""
    with contextlib.suppress(OSError):
        with os.scandir(places.runs) as entries:
            return sorted(each.name for each in entries if ID.fullmatch(each.name))
    return []


def pick_run(places: Places, name: str = "") -> str:
    """The id that is meant: an exact id, or the newest run for "" and "last"."""
    if name not in ("", "last"):
        run_folder(places, name)
        return name
    ids = [each for each in run_ids(places) if os.path.isfile(_asked(places, each))]
    newest = [each for each in ids if each[:13] == ids[-1][:13]]  # an id tells the minute
    if newest:
        return max(newest, key=lambda each: float(read_json(_asked(places, each))["created"]))
    raise Refusal("NoSuchRun", f"no run in {places.runs} yet", "start one: fab launch")


def _asked(places: Places, run_id: str) -> str:
    return os.path.join(places.runs, run_id, "run.json")


def read_run(folder: str) -> dict[str, Any]:
    return read_json(os.path.join(folder, "run.json"))


def read_state(folder: str) -> dict[str, Any]:
    """state.json; a run without one was killed while it was being made."""
    try:
        return read_json(os.path.join(folder, "state.json"))
    except FileNotFoundError:
        return {"schema": SCHEMA, "state": "created", "since": 0.0, "history": []}


def read_intent(folder: str) -> dict[str, Any] | None:
    """Who wants the run to stop, and into which state; None where nobody does."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return read_json(os.path.join(folder, "intent.json"))
    return None


def read_progress(folder: str) -> dict[str, Any] | None:
    """The workload's heartbeat; None before its first, and where the program writes none."""
    with contextlib.suppress(OSError, ValueError):
        return read_json(os.path.join(folder, "output", "progress.json"))
    return None


def write_state(folder: str, state: dict[str, Any]) -> None:
    write_json(os.path.join(folder, "state.json"), {"schema": SCHEMA, **state})


def change_state(folder: str, new: str, **why: Any) -> dict[str, Any]:
    """Move a run to another state, keep the way there, and write it in one rename.

    Only who holds the run's claim calls this. ValueError where `new` can't follow.
    """
    state = read_state(folder)
    old = state["state"]
    if new not in NEXT[old]:
        raise ValueError(f"{folder}: {new} can't follow {old}")
    now = time.time()
    history = [*state.get("history", []), {"state": new, "at": now}][-50:]
    state = {**state, "state": new, "since": now, "history": history, **why}
    write_state(folder, state)
    return state


def box_identity(places: Places) -> str:
    """Which box a run belongs to: host name and a number kept in ~/.gpubox.

    Two boxes may share /data, or a home: only both together tell them apart.
    """
    path = os.path.join(places.home, "box-id")
    try:
        number = read_json(path)["id"]
    except (FileNotFoundError, ValueError, KeyError):
        number = uuid.uuid4().hex[:12]
        write_json(path, {"schema": SCHEMA, "id": number})
    return f"{number}@{socket.gethostname()}"


def claim_path(places: Places, run_id: str) -> str:
    folder = os.path.join(places.home, "claims")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, f"{run_id}@{socket.gethostname()}")


@contextlib.contextmanager
def claim(places: Places, run_id: str, supervises: bool = False) -> Iterator[bool]:
    """True while we are the one process that may change a run's state; the kernel frees it when
    we die. It lies in the home: /data may be a network disk whose locks can't be trusted.

    Only who supervises the run leaves its pid: a stop signals that process, and must not end
    another verb that holds the claim for a moment.
    """
    fd = os.open(claim_path(places, run_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        os.ftruncate(fd, 0)
        if supervises:
            me = {"pid": os.getpid(), "boot": boot_id(), "started": process_start(os.getpid())}
            os.pwrite(fd, json.dumps(me).encode(), 0)
        yield True
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def supervisor_pid(places: Places, run_id: str) -> int:
    """The living process that supervises a run; 0 where none does.

    Read, not tried: trying would hold the claim for a moment, and a supervisor that starts just
    then would take it for taken.
    """
    try:
        with open(claim_path(places, run_id)) as file:
            who = json.load(file)
    except (OSError, ValueError):
        return 0
    alive = who["boot"] == boot_id() and process_start(who["pid"]) == who["started"]
    return int(who["pid"]) if alive else 0


def record(places: Places, run_id: str) -> dict[str, Any]:
    """One run as every reader gets it: id, folder, run, state, progress, supervised."""
    folder = os.path.join(places.runs, run_id)
    state = read_state(folder)
    run = read_run(folder)
    mine = run.get("identity") == box_identity(places)
    return {
        "id": run_id,
        "folder": folder,
        "run": run,
        "state": state,
        "progress": read_progress(folder),
        "mine": mine,
        "supervised": mine and state["state"] not in ENDED and bool(supervisor_pid(places, run_id)),
    }


def list_runs(places: Places) -> list[dict[str, Any]]:
    """All runs, oldest first; damaged ones have `damaged` (why) instead of a state."""
    found = []
    for run_id in run_ids(places):
        try:
            found.append(record(places, run_id))
        except (OSError, ValueError, KeyError) as fault:
            folder = os.path.join(places.runs, run_id)
            if os.path.exists(os.path.join(folder, "run.json")):
                found.append({"id": run_id, "folder": folder, "damaged": str(fault)})
    return sorted(found, key=lambda each: (each["id"][:13], each.get("run", {}).get("created", 0)))
