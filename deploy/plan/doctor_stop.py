"""PURE: the money's part of `fab doctor`: is the keeper armed, and what does stopping this box do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploy.plan.check import Check
from deploy.plan.config import Box
from deploy.plan.keeper import status_line, stop_plan
from deploy.plan.providers import Choice


def checks(
    idle: Mapping[str, Any],
    marks: Mapping[str, Any],
    choice: Choice,
    box: Box,
    name: str,
    now: float,
) -> list[Check]:
    """`idle`, `marks`: the box's own answers; `choice`: whose box it is taken to be."""
    return [stop(stop_plan(box, choice, marks), choice, name), keeper(idle, name, now)]


def keeper(idle: Mapping[str, Any], name: str, now: float) -> Check:
    line = status_line(idle, now).removeprefix("auto-stop: ")
    if not idle["armed"]:
        remedy = f"fab deploy arms it; or now: fab idle --arm --host {name}"
        return Check("auto-stop", line, "warn", remedy, "StopFailed")
    if not idle["after_reboot"]:
        remedy = "no systemd and no cron here: arm it again after a reboot"
        return Check("auto-stop", line, "warn", remedy, "StopFailed")
    return Check("auto-stop", line)


def stop(plan: Mapping[str, Any], choice: Choice, name: str) -> Check:
    """Whether it can be switched off from inside, and what that does to the bill and the data."""
    known = "your word" if choice.told else ", ".join(choice.marks) or "by no mark"
    value = f"{choice.preset.title} ({known}); {plan['effect']}"
    if plan["how"] == "report" and not box_is_to_stay(plan):
        remedy = f"set boxes.{name}.provider, or boxes.{name}.stop.command"
        return Check("can be stopped", value, "warn", remedy, "StopFailed")
    return Check("can be stopped", value, "ok" if plan["how"] == "inside" else "note")


def box_is_to_stay(plan: Mapping[str, Any]) -> bool:
    return "shared" in plan["effect"]
