"""Stops the box: runs first, their checkpoints looked at, then the stop command, tried until it works."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, NamedTuple

from . import runs
from .child import TookTooLong, in_child, run_program
from .environment import fill_in, known_environment
from .places import Places
from .publish import read_json
from .refusal import Refusal

PAUSES = (30.0, 60.0, 120.0, 300.0, 600.0)  # seconds between tries; the last one for ever
COMMAND_SECONDS = 60.0
VERIFY_SECONDS = 90.0  # a box that still lives that long after its stop command was not stopped
CHECK_SECONDS = 120.0


def stop_runs(places: Places, ids: list[str], by: str, then: str, grace: float) -> list[str]:
    """Stop runs, all at once, each with its grace; what is worth saying, one line each.

    In a child, since an engine or a disk that is dead would hang us too.
    """
    if not ids:
        return []

    def work() -> list[str]:
        from concurrent.futures import ThreadPoolExecutor

        from .stopping import stop_run

        def one(run_id: str) -> str:
            try:
                stopped = stop_run(places, run_id, by, then, grace)
                ending = stopped.get("ending") or {}
                return "{}: {}".format(run_id, ending.get("text") or stopped["state"])
            except Exception as fault:
                return f"{run_id}: could not be stopped: {fault}"

        with ThreadPoolExecutor(len(ids)) as pool:
            return list(pool.map(one, ids))

    try:
        return list(in_child(work, grace + 60))
    except (TookTooLong, RuntimeError) as no:
        return [f"{', '.join(ids)}: not stopped in time ({no or 'engine or disk hangs'})"]


def look_at_checkpoints(places: Places, ids: list[str]) -> list[str]:
    """For each run: its newest checkpoint that is whole on the disk that lasts, and whether it
    is home. Everything is synced before."""

    def work() -> list[str]:
        os.sync()
        return [checkpoint_line(places, run_id) for run_id in ids]

    try:
        return list(in_child(work, CHECK_SECONDS))
    except (TookTooLong, RuntimeError) as no:
        return [f"checkpoints could not be looked at: {no or 'the disk does not answer'}"]


def checkpoint_line(places: Places, run_id: str) -> str:
    folder = os.path.join(places.runs, run_id)
    whole, damaged = newest_whole(os.path.join(folder, "output", "checkpoints"))
    if not whole:
        return f"{run_id}: no whole checkpoint" + (f" ({damaged} damaged)" if damaged else "")
    home = ""
    with contextlib.suppress(OSError, ValueError, KeyError):
        home = "step_{:08d}".format(int(read_json(os.path.join(folder, "home.json"))["step"]))
    at_home = "is home" if home == whole else f"NOT home yet (home: {home or 'none'})"
    return f"{run_id}: {whole} is whole and {at_home}" + (f"; {damaged} damaged" if damaged else "")


def newest_whole(checkpoints: str) -> tuple[str, int]:
    """The newest step folder whose SHA256SUMS hold, and how many newer ones do not."""
    names = sorted(os.listdir(checkpoints), reverse=True) if os.path.isdir(checkpoints) else []
    damaged = 0
    for name in names:
        if name.startswith("step_"):
            if sums_hold(os.path.join(checkpoints, name)):
                return name, damaged
            damaged += 1
    return "", damaged


def sums_hold(folder: str) -> bool:
    """Every file that SHA256SUMS names has its checksum; false without any."""
    try:
        with open(os.path.join(folder, "SHA256SUMS")) as file:
            rows = [line.rstrip("\n").split(maxsplit=1) for line in file if line.strip()]
        pairs = [(digest, name.lstrip("*")) for digest, name in rows]
        return bool(pairs) and all(digest_of(os.path.join(folder, n)) == d for d, n in pairs)
    except (OSError, ValueError):
        return False


def digest_of(path: str) -> str:
    import hashlib  # brings OpenSSL: only the child that looks at checkpoints pays for it

    sha = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            sha.update(block)
    return sha.hexdigest()


class Tried(NamedTuple):
    """What came of one stop command: `accepted` is not `done`; only a box that is off is."""

    accepted: bool
    text: str


def try_to_stop(stop: dict[str, Any], run: Callable[..., Any] = run_program) -> Tried:
    """Run the ways to stop in order until one is accepted."""
    said = []
    env = known_environment()
    seconds = float(stop.get("seconds", COMMAND_SECONDS))
    for command in stop.get("commands", []):
        ended = run([fill_in(word, env) for word in command], seconds, env)
        if ended.code == 0:
            return Tried(True, f"{command[0]} accepted it")
        how = "did not end" if ended.code is None else f"ended with {ended.code}"
        said.append(f"{command[0]} {how}: {(ended.text.splitlines() or ['no word'])[-1][:200]}")
    for call in stop.get("calls", []):
        tried = try_call(call, env)
        if tried.accepted:
            return tried
        said.append(tried.text)
    return Tried(False, "; ".join(said) or "there is no way to stop this box from inside")


def try_call(call: dict[str, Any], env: dict[str, str]) -> Tried:
    """An HTTP call of the provider: {method, url, headers, body} with ${NAME} filled in."""

    def work() -> int:
        from .post import send

        headers = {key: fill_in(value, env) for key, value in call.get("headers", {}).items()}
        body = fill_in(call.get("body", ""), env).encode()
        return send(call["method"], fill_in(call["url"], env), headers, body)[0]

    host = call["url"].split("/")[2]
    try:
        return Tried(True, f"{host} answers {in_child(work, COMMAND_SECONDS)}")
    except TookTooLong:
        return Tried(False, f"{host} does not answer")
    except (RuntimeError, Refusal) as no:
        return Tried(False, f"{host}: {no}")


def live_ids(places: Places) -> list[str]:
    """The runs of this box that have begun and not ended; none where the disk can't be read."""

    def work() -> list[str]:
        found = runs.list_runs(places)
        return [r["id"] for r in found if r.get("mine") and r["state"]["state"] in runs.ALIVE]

    try:
        return list(in_child(work, 30))
    except (TookTooLong, RuntimeError):
        return []
