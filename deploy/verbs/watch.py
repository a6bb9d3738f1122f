"""`fab watch`: the laptop's side of the keeper: notices on the desktop, snooze, stops from here."""

from __future__ import annotations

import queue
import sys
import threading
import time
from typing import Any

from deploy.effects.commands import desktop_notice, run_own
from deploy.errors import KitError
from deploy.plan.config import Box
from deploy.plan.keeper import status_line, what_keeps
from deploy.verbs.desk import Desk
from deploy.verbs.down import wait_until_off

SNOOZE = 3600.0


def watch(desk: Desk, every: float, once: bool) -> list[dict[str, Any]]:
    """Look at each box every `every` seconds, until Ctrl-C; once with `once`."""
    answers = sys.stdin.isatty() and not once  # whether somebody can press Enter
    pressed = keys() if answers else queue.Queue()
    told: dict[str, tuple[str, int]] = {}
    while True:
        results = [look(desk, name, told, pressed, answers) for name in desk.hosts]
        if once:
            return results
        wait(pressed, every)


def look(
    desk: Desk,
    name: str,
    told: dict[str, tuple[str, int]],
    pressed: queue.Queue[str],
    answers: bool,
) -> dict[str, Any]:
    try:
        with desk.open(name) as box:
            if not pressed.empty() and told.get(name, ("", 0))[1]:
                held = box.call("hold", seconds=SNOOZE, why="snoozed from fab watch", who="watch")
                desk.show.done(f"{name}: held for {held['seconds'] / 3600:.0f} h")
            answer = box.call("idle")
        line = status_line(answer, time.time())
        desk.show.say(f"{name}: {line}")
        notice(desk, name, answer, f"{line}. {what_keeps(answer, name, answers)}", told)
        stopped = stop_from_here(desk, name, desk.box(name), answer)
        return {"box": name, "line": line, "stopped": stopped}
    except KitError as no:
        desk.show.warn(no.message)
        return {"box": name, "error": no.message, "hint": no.hint}
    finally:
        if name == desk.hosts[-1]:
            empty(pressed)


def notice(
    desk: Desk, name: str, answer: dict[str, Any], line: str, told: dict[str, tuple[str, int]]
) -> None:
    """One notice for each new level of a reminder, and for a box that is not armed."""
    decision = (answer.get("status") or {}).get("decision")
    level = (decision["cause"], decision["level"]) if decision else ("not armed", 1)
    if level[1] == 0:
        told.pop(name, None)
    elif told.get(name) != level:
        told[name] = level
        desktop_notice(f"gpubox: {name}", line)
        desk.show.warn(f"{name}: {line}")


def stop_from_here(desk: Desk, name: str, config: Box, answer: dict[str, Any]) -> bool:
    """Carry out the stop that the keeper has prepared and can't do from inside."""
    stopping = (answer.get("status") or {}).get("stopping")
    if not stopping or not stopping["for_laptop"] or not config.stop.from_laptop:
        return False
    if desk.dry_run:
        desk.show.step(f"{name}: would run {config.stop.from_laptop[0]}")
        return False
    try:
        run_own(config.stop.from_laptop, f"{name}: stop")
        wait_until_off(desk, name)
    except KitError as no:
        desktop_notice(f"gpubox: {name} could NOT be stopped", no.message)
        desk.show.error(no)
        return False
    desktop_notice(f"gpubox: {name}", "stopped: SSH answers no more")
    desk.show.done(f"{name}: stopped from here; SSH answers no more")
    return True


def keys() -> queue.Queue[str]:
    """Lines typed into this terminal, as they come."""
    typed: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            typed.put(line)

    threading.Thread(target=read, daemon=True).start()
    return typed


def wait(pressed: queue.Queue[str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and pressed.empty():
        time.sleep(0.2)


def empty(pressed: queue.Queue[str]) -> None:
    while not pressed.empty():
        pressed.get_nowait()
