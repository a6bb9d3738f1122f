"""PURE: the idle rule with the origin of each value, the request that arms it, the line about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from deploy.errors import ConfigError, UsageError
from deploy.plan.config import Box, IdleRule, Seconds
from deploy.plan.providers import Choice, power_off_command
from deploy.plan.quantities import parse_duration, show_duration, show_time

DECIDES = ("remind_after", "stop_after", "max_unknown", "max_hours", "max_cost", "poll", "enabled")
LIMITS = ("gpu_below", "cpu_below", "net_below", "disk_below", "stalled_after")
POLLS = (1.0, 300.0)


def parse_limit(text: str, flag: str) -> Seconds | None:
    """Seconds of "30m"; None for "off". Everything else has one refusal each."""
    text = text.strip()
    if text == "off":
        return None
    if text.lstrip("-").replace(".", "", 1).isdigit():
        number = float(text)
        if number == 0:
            raise UsageError(f"{flag} 0: would stop a box at once", 'write "off", or fab down')
        if number < 0:
            raise UsageError(f"{flag} {text}: a time can't be negative", 'to switch it off: "off"')
        raise UsageError(f"{flag} {text}: {text} what?", f'write "{text}s", "{text}m" or "{text}h"')
    if ":" in text:
        raise UsageError(f"{flag} {text}: hours or minutes?", 'write "1h30m" or "1m30s"')
    try:
        return Seconds(parse_duration(text))
    except ValueError as no:
        raise UsageError(f"{flag}: {no}", 'or "off"') from no


def with_overrides(rule: IdleRule, overrides: Mapping[str, Any]) -> IdleRule:
    """The rule with what `fab idle --stop-after …` has set over the config."""
    known = {each.name for each in fields(IdleRule)}
    return replace(rule, **{key: value for key, value in overrides.items() if key in known})


def origins(document: Mapping[str, Any], name: str, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Where each value of a box's rule comes from: `document` is gpubox.toml as parsed."""
    own = document.get("boxes", {}).get(name, {}).get("idle", {})
    general = document.get("idle", {})
    found = {}
    for each in fields(IdleRule):
        key = each.name
        if key in overrides:
            found[key] = "fab idle"
        elif key in own or (key == "enabled" and own.get("stop_after") == "off"):
            found[key] = f"boxes.{name}.idle"
        elif key in general or (key == "enabled" and general.get("stop_after") == "off"):
            found[key] = "idle"
        else:
            found[key] = "default"
    return found


def check_rule(rule: IdleRule, price: float | None) -> None:
    """ConfigError for a rule that contradicts itself or can't be carried out."""
    if not POLLS[0] <= rule.poll <= POLLS[1]:
        raise ConfigError(f"idle.poll: {show_duration(rule.poll)}", "1 s to 5 min")
    if rule.enabled and rule.stop_after < 3 * rule.poll:
        raise ConfigError(
            f"idle.stop_after: {show_duration(rule.stop_after)} is less than three looks at the box",
            f'at least {show_duration(3 * rule.poll)}, or stop_after = "off"',
        )
    if rule.enabled and rule.remind_after > rule.stop_after:
        raise ConfigError(
            f"idle.remind_after: {show_duration(rule.remind_after)} is later than stop_after, "
            f"{show_duration(rule.stop_after)}",
            "a reminder has to come before the stop",
        )
    if rule.max_cost is not None and not price:
        raise ConfigError("idle.max_cost: needs a price", "set boxes.NAME.price_per_hour")
    for key in ("max_hours", "max_cost"):
        if getattr(rule, key) is not None and getattr(rule, key) <= 0:
            raise ConfigError(f"idle.{key}: has to be more than 0", "leave it out for no cap")


def stop_plan(box: Box, choice: Choice, found: Mapping[str, Any]) -> dict[str, Any]:
    """How the box is to be stopped, and what that does; `how` is inside, laptop or report."""
    preset, rule = choice.preset, box.stop
    plan: dict[str, Any] = {
        "how": "inside",
        "commands": [],
        "calls": [],
        "checks": [],
        "power_off_ends_bill": preset.power_off_in_container,
        "effect": f"bill: {preset.bill}; data: {preset.data}",
    }
    if box.shared or preset.name == "onprem":
        return {
            **plan,
            "how": "report",
            "effect": "it is shared: only stalled runs of ours are stopped",
        }
    if rule.command:
        effect = "your own stop command is run; what it does to bill and data is yours to know"
        return {**plan, "commands": [list(rule.command)], "effect": effect}
    if rule.from_laptop:
        return {**plan, "how": "laptop", "effect": "`fab watch` on the laptop stops it"}
    if preset.deletes and not rule.allow_data_loss:
        effect = f"not stopped: {preset.data}; say boxes.NAME.stop.allow_data_loss = true for that"
        return {**plan, "how": "report", "effect": effect}
    commands = [list(each) for each in preset.commands]
    commands += [list(power_off_command(found))] if preset.power_off else []
    if not commands and not preset.calls:
        return {**plan, "how": "report", "effect": f"not stopped from inside ({preset.how})"}
    ways = {"commands": commands, "calls": [dict(each) for each in preset.calls]}
    return {**plan, **ways, "checks": [check_of(each, choice.told) for each in preset.checks]}


def check_of(check: Mapping[str, Any], told: bool) -> dict[str, Any]:
    """A check as the box does it; what could not be found out is no obstacle where the user has
    named the provider and the check says that this is enough."""
    kept = {key: value for key, value in check.items() if key != "unless_told"}
    if told and check.get("unless_told"):
        kept.pop("unknown")
    return kept


def arm_request(
    name: str,
    box: Box,
    rule: IdleRule,
    where_from: Mapping[str, str],
    stop: Mapping[str, Any],
    choice: Choice,
    currency: str,
    grace: float,
) -> dict[str, Any]:
    """The document that the keeper is armed with (docs/formats.md)."""
    decides = {key: getattr(rule, key) for key in DECIDES}
    return {
        "box": name,
        "rule": {**decides, "price_per_hour": box.price_per_hour},
        "limits": {key: getattr(rule, key) for key in LIMITS},
        "origins": dict(where_from),
        "shared": box.shared,
        "currency": box.currency or currency,
        "provider": {"name": choice.preset.name, "marks": list(choice.marks), "told": choice.told},
        "stop": dict(stop),
        "grace": grace,
    }


def asked_mark(*parts: Any) -> str:
    """A hash of everything that an arming depends on: the same again is one round trip."""
    text = json.dumps(parts, sort_keys=True, default=lambda each: vars(each))
    return hashlib.sha256(text.encode()).hexdigest()


def status_line(answer: Mapping[str, Any], now: float) -> str:
    """`auto-stop: armed, 12 min idle of 30 min, stops 14:05`, or NOT armed and why.

    `now` is the laptop's clock, in whose zone the moment is shown.
    """
    if not answer.get("armed"):
        return f"auto-stop: NOT armed: {answer.get('why_not') or 'not asked yet'}"
    status, rule = answer["status"], answer["rule"]["rule"]
    decision = status["decision"]
    parts = ["auto-stop: armed"]
    if not rule["enabled"]:
        parts[0] = "auto-stop: OFF (idle rule), caps hold" if has_caps(rule) else "auto-stop: OFF"
    if answer["rule"]["stop"]["how"] == "report":
        parts[0] = parts[0].replace("armed", "reminders only").replace("hold", "only remind")
    if status.get("stopping"):
        parts = [being_stopped(status["stopping"])]
    parts.append(told(decision, rule))
    stops = answer["rule"]["stop"]["how"] != "report"
    if stops and decision["stops_in"] is not None and decision["action"] != "stop":
        parts.append(f"stops {show_time(now + decision['stops_in'], now)}")
    if answer.get("hold") and answer["hold"]["left"] > 0:
        parts.append(f"held for {show_duration(answer['hold']['left'])}")
    if not answer.get("after_reboot"):
        parts.append("NOT armed after a reboot")
    return ", ".join(parts)


def what_keeps(answer: Mapping[str, Any], name: str, answers: bool) -> str:
    """What can be done about a reminder; `answers`: somebody sits at this terminal."""
    if not answer.get("armed"):
        return f"Nothing stops it: fab idle --arm --host {name}, or fab down"
    caps = {"lifetime": "--max-hours", "cost": "--max-cost"}
    if flag := caps.get(answer["status"]["decision"]["cause"]):
        return f"Only another cap keeps it: fab idle {flag} --host {name}"
    return "Enter keeps it for an hour" if answers else f"To keep it: fab hold 1h --host {name}"


def being_stopped(stopping: Mapping[str, Any]) -> str:
    if stopping["for_laptop"]:
        return "auto-stop: READY to be stopped from the laptop (fab watch)"
    if stopping["tries"] and not stopping["accepted"]:
        return (
            f"auto-stop: STOP FAILED {stopping['tries']} times ({stopping['last']}), goes on trying"
        )
    return "auto-stop: being stopped now"


def has_caps(rule: Mapping[str, Any]) -> bool:
    return rule.get("max_hours") is not None or rule.get("max_cost") is not None


def told(decision: Mapping[str, Any], rule: Mapping[str, Any]) -> str:
    if decision["cause"] == "active":
        return "active"
    if decision["cause"] == "idle":
        limit = show_duration(rule["stop_after"])
        return f"{show_duration(decision['idle_for'])} idle of {limit}"
    return str(decision["reason"])


def caps_note(rule: Mapping[str, Any]) -> str:
    """What `deploy` says of caps that are not set; "" where one is."""
    if has_caps(rule):
        return ""
    return "no lifetime and no money cap is set (idle.max_hours, idle.max_cost)"
