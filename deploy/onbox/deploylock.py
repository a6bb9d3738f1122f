"""One deploy at a time: a lock that a laptop's requests take, renew and give back as they come.

A laptop has no process on the box between its requests, so that its sign of life is the last
request; one that takes long renews while it works.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, Iterator

from .locks import HEARTBEAT, age_of, bury, describe, is_dead, place, read_holder, remove_lock
from .places import own_folder
from .refusal import Refusal

PERIOD = 0.2


def lock_path() -> str:
    return os.path.join(own_folder(), "deploy.lock")


def take(me: dict[str, Any], dead: list[str]) -> dict[str, Any] | None:
    """None when the lock is ours (or was already), else its living holder.

    dead  tokens of deploys that the asking laptop knows to be dead: its own earlier ones
    """
    lock = lock_path()
    while not place(lock, {**me, "schema": 1, "since": time.time()}):
        owner = read_holder(lock)
        if owner is None:
            continue
        if owner.get("token") == me["token"]:
            os.utime(os.path.join(lock, "holder.json"), None)
            return None
        if owner.get("token") not in dead and not is_dead(owner, age_of(lock)):
            return owner
        bury(lock, owner)
    return None


def wait_for(ask: dict[str, Any], wire: Any) -> None:
    """Take the lock, after at most `ask["wait"]` seconds; events tell for whom it waits."""
    deadline, told = time.monotonic() + float(ask.get("wait", 0)), ""
    while True:
        owner = take(ask["me"], ask.get("dead") or [])
        if owner is None:
            return
        if time.monotonic() >= deadline:
            raise Refusal(
                "Busy",
                f"a deploy goes on: {describe(owner)}",
                "wait for it, or `fab unlock` if you know it to be dead",
            )
        if owner.get("token") != told:
            told = str(owner.get("token"))
            wire.event(waits_for=describe(owner))
        time.sleep(PERIOD)


@contextlib.contextmanager
def deploy_lock(request: dict[str, Any], wire: Any) -> Iterator[None]:
    """Hold the lock that a request names while it is done; `release` gives it back after that."""
    ask = request.get("lock")
    if not ask:
        yield
        return
    wait_for(ask, wire)
    stop = threading.Event()
    threading.Thread(target=_renew, args=(ask["me"]["token"], stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        if ask.get("release"):
            release(ask["me"]["token"])


def _renew(token: str, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT):
        renew({"token": token})


def renew(request: dict[str, Any], wire: Any = None) -> dict[str, Any]:
    """Verb: a sign of life of the deploy `token`, if the lock is its; never waits for it."""
    with contextlib.suppress(OSError):
        if (read_holder(lock_path()) or {}).get("token") == request["token"]:
            os.utime(os.path.join(lock_path(), "holder.json"), None)
            return {"held": True}
    return {"held": False}


def release(token: str) -> None:
    """Give the lock back, if it is this deploy's."""
    if (read_holder(lock_path()) or {}).get("token") == token:
        remove_lock(lock_path())


def release_early(request: dict[str, Any]) -> None:
    """Before the end of a request whose last part, a wait, needs the lock no more."""
    ask = request.get("lock") or {}
    if ask.get("release"):
        release(ask["me"]["token"])


def unlock(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: who held the lock, and whether it is free now. A living holder only gives way to its
    own `token`, to one named `dead`, or to `force`."""
    owner = read_holder(lock_path())
    if owner is None:
        return {"held": False, "freed": False}
    known = {request.get("token"), *(request.get("dead") or [])} - {None}
    alive = owner.get("token") not in known and not is_dead(owner, age_of(lock_path()))
    said = {"held": True, "who": describe(owner), "alive": alive}
    if alive and not request.get("force"):
        return {**said, "freed": False}
    remove_lock(lock_path())
    return {**said, "freed": True}
