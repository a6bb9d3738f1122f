"""`fab down`: stops a box, runs and checkpoints first, and makes sure that it is off."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.commands import run_own
from deploy.errors import ConnectError, KitError, LinkLost, StopFailed
from deploy.plan.config import Box
from deploy.plan.keeper import stop_plan
from deploy.plan.providers import choose, questions
from deploy.verbs.desk import Desk
from deploy.verbs.idle import ssh_host

OFF_SECONDS = 180.0
LOOKS = 2  # unanswered tries in a row that prove it


def down(desk: Desk, force: bool) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for name in desk.hosts:
        config = desk.box(name)
        if (config.host or name) == "local":
            raise StopFailed("local: this is the machine that you sit at", "name another box")
        with desk.open(name) as box:
            stop = plan_of(box, config, name)
            if stop["how"] == "report":
                raise StopFailed(
                    f"{name}: {stop['effect']}",
                    f"stop it in the provider's console; or set boxes.{name}.provider, or "
                    f"boxes.{name}.stop.command or from_laptop",
                )
            desk.show.note(f"{name}: {stop['effect']}")
            if desk.dry_run:
                results.append({"box": name, "off": False, "stop": stop})
                continue
            if not force and not desk.show.ask(f"Stop {name}? Its runs are saved and interrupted."):
                raise StopFailed(f"{name}: not stopped: nobody said yes", "fab down --yes")
            said = ask_box(desk, box, stop)
        if config.stop.from_laptop:
            run_own(config.stop.from_laptop, f"{name}: stop")
        elif not said["accepted"]:
            raise StopFailed(f"{name}: {said['text']}", "stop it in the provider's console")
        wait_until_off(desk, name)
        desk.show.done(f"{name}: off: SSH answers no more")
        results.append({"box": name, "off": True, "lines": said["lines"]})
    return results


def plan_of(box: Agent, config: Box, name: str) -> dict[str, Any]:
    found = box.call("marks", **questions())
    stop = stop_plan(config, choose(config.provider, found, ssh_host(box, config, name)), found)
    return {**stop, "how": "laptop"} if config.stop.from_laptop else stop


def ask_box(desk: Desk, box: Agent, stop: dict[str, Any]) -> dict[str, Any]:
    """The box's part; a link that dies after the stop command was given is what was asked for."""
    grace = desk.config.run.stop_grace
    try:
        return box.call("down", on_event=lambda e: say(desk, e), stop=stop, grace=grace)
    except LinkLost:
        return {"accepted": True, "text": "the link died", "lines": []}


def say(desk: Desk, event: dict[str, Any]) -> None:
    if "text" in event:
        desk.show.step(event["text"])


def wait_until_off(desk: Desk, name: str) -> None:
    """Until SSH has not answered twice; StopFailed where it still does at the end."""
    unanswered = 0

    def look() -> bool:
        nonlocal unanswered
        unanswered = 0 if answers(desk, name) else unanswered + 1
        return unanswered >= LOOKS

    if not until(look, OFF_SECONDS):
        raise StopFailed(
            f"{name}: the stop was accepted, but SSH still answers after {OFF_SECONDS:.0f} s",
            "it goes on costing money: stop it in the provider's console",
        )


def until(look: Callable[[], bool], seconds: float, pause: float = 3.0) -> bool:
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
    return True


def answers(desk: Desk, name: str) -> bool:
    """True where SSH lets us in; the name is resolved anew each time."""
    try:
        with desk.open(name):
            return True
    except (ConnectError, LinkLost):
        return False
    except KitError:
        return True  # a refused host key is an answer: somebody is there
