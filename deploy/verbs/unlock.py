"""`fab unlock`, and the lock that a deploy holds on a box while it works there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.deploys import dead_tokens, registered
from deploy.errors import Busy, KitError
from deploy.verbs.desk import Desk

WAIT = 1800.0  # seconds for another deploy to end
RENEW = 40.0  # seconds between two signs of life, a third of what the box waits for one


@contextmanager
def deploying(box: Agent, why: str = "deploy", wait: float = WAIT) -> Iterator[None]:
    """Every request of the block takes or renews the box's deploy lock: no request of its own, but
    for a sign of life now and then, since what is done here in between (a build) may take long.

    The lock goes back with the request after `release_with_next`, or at the end of the block.
    """
    with registered(why) as me:
        box.also["lock"] = {"me": me, "dead": dead_tokens(), "wait": wait}
        ended = threading.Event()
        threading.Thread(target=_renew, args=(box, me["token"], ended), daemon=True).start()
        try:
            yield
        finally:
            ended.set()
            lock = box.also.pop("lock", {})
            if not lock.get("release"):
                with contextlib.suppress(KitError):  # it dies by its age where we can't reach it
                    box.call("unlock", token=me["token"])


def _renew(box: Agent, token: str, ended: threading.Event) -> None:
    while not ended.wait(RENEW):
        with contextlib.suppress(KitError):  # a lost link is met by the next request
            box.call("renew", token=token, lock=None)


def release_with_next(box: Agent) -> None:
    """The next request is the deploy's last that needs the lock: it gives it back as it ends."""
    if "lock" in box.also:
        box.also["lock"]["release"] = True


def unlock(desk: Desk, force: bool = False) -> list[dict[str, Any]]:
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            found = box.call("unlock", force=force, dead=dead_tokens())
        if not found["held"]:
            desk.show.say(f"{name}: no deploy holds it")
        elif found["freed"]:
            desk.show.done(f"{name}: freed; it was held by {found['who']}")
        else:
            raise Busy(
                f"{name}: held by {found['who']}, which gave a sign of life in the last two minutes",
                "wait for it, or --force if you are sure",
            )
        results.append({"box": name, **found})
    return results
