"""What the keeper says of itself (status.json), and how a reader knows whether it still lives."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable

from .armed import read_armed
from .hold import hold_left, read_hold
from .idle import Decision, Sample
from .life import keeper_folder, life
from .locks import process_start
from .publish import read_json

if TYPE_CHECKING:
    from .keeper import Keeper

LATE = 4  # polls without a new status: the keeper is dead or hangs


def status_path() -> str:
    return os.path.join(keeper_folder(), "status.json")


def write_status(keeper: Keeper, decision: Decision, sample: Sample) -> None:
    """Replaced at every poll; not synced, as it is of no use after a power cut."""
    status = {
        "schema": 1,
        "pid": os.getpid(),
        "started": process_start(os.getpid()),
        "life": life(),
        "version": os.path.basename(sys.argv[0]),
        "at": time.monotonic(),
        "wall": time.time(),
        "poll": keeper.rule.poll,
        "decision": decision._asdict(),
        "signals": {name: list(each) for name, each in sample.signals.items()},
        "spent": keeper.ledger.spent(),
        "stopping": keeper.stop.status() if keeper.stop else None,
        "problems": keeper.journal.problems(),
    }
    temporary = status_path() + ".new"
    with open(temporary, "w") as file:
        json.dump(status, file)
    os.replace(temporary, status_path())


def keeper_lives(status: dict[str, Any] | None) -> bool:
    """The process that wrote the status is there, on this boot, and wrote it lately."""
    if not status or status.get("life") != life():
        return False
    if process_start(int(status["pid"])) != status["started"]:
        return False
    late = max(LATE * float(status["poll"]), 60.0)
    return bool(time.monotonic() - float(status["at"]) < late)


def read_status() -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        return read_json(status_path())
    return None


def idle_status(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Answer: {armed, why_not, status, rule…}: everything that `fab idle` and `fab status` show."""
    from .arming import after_reboot

    revive()
    return said(after_reboot)


def revive() -> None:
    """Start a keeper again that is armed and dead, where nothing else would: a pod that was started
    anew has neither init nor cron. Every look from a laptop does this first."""
    armed = read_armed()
    if armed is None or armed.get("mode") != "detached" or keeper_lives(read_status()):
        return
    from .arming import start_again  # large, and hardly ever asked

    start_again()


def said(survives: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The same, with `survives` to tell whether what is armed starts again after a reboot."""
    status, armed = read_status(), read_armed()
    hold = read_hold()
    lives = keeper_lives(status)
    why = "" if lives else "no rule" if armed is None else "the keeper does not run"
    return {
        "armed": bool(lives and armed),
        "why_not": why,
        "after_reboot": survives(armed) if armed else False,
        "status": status if lives else None,
        "rule": armed,
        "hold": {**hold, "left": hold_left(hold, time.monotonic(), time.time())} if hold else None,
        "now": time.time(),
    }
