"""`fab idle`: shows and changes the rule by which a box is stopped; arms the keeper for deploy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.settings import beside_config, laptop_folder, load_document
from deploy.errors import ConfigError, UsageError
from deploy.plan.config import Box, IdleRule
from deploy.plan.keeper import (
    arm_request,
    asked_mark,
    caps_note,
    check_rule,
    origins,
    parse_limit,
    status_line,
    stop_plan,
    with_overrides,
)
from deploy.plan.providers import choose, questions
from deploy.plan.quantities import show_duration
from deploy.verbs.desk import Desk

RESTART_HINT = "the keeper keeps its version until fab idle --restart"


def arm_keeper(
    desk: Desk,
    box: Agent,
    config: Box,
    force: bool = False,
    restart: bool = False,
    mode: str = "auto",
) -> dict[str, Any]:
    """Arm the box's keeper with the rule of the config and of `fab idle`; one round trip where
    it is armed with exactly that already. StopFailed where the rule can't be carried out."""
    name = box.link.name
    rule, channels, asked = rule_of(desk, box, config)
    if not force and not restart:
        already = box.call("arm", same_as=asked)
        if already["armed"]:
            return already
    found = box.call("marks", **questions())
    choice = choose(config.provider, found, ssh_host(box, config, name))
    stop = stop_plan(config, choice, found)
    where_from = origins(load_document(), name, read_overrides(name))
    grace = desk.config.run.stop_grace
    request = arm_request(name, config, rule, where_from, stop, choice, desk.config.currency, grace)
    if any(not is_webhook(each["url"]) for each in channels):
        from deploy.verbs.notify import ensure_notify_bundle

        ensure_notify_bundle(desk, box)
    request.update(asked=asked, channels=channels, force=force, restart=restart, mode=mode)
    return box.call("arm", **request)


def rule_of(desk: Desk, box: Agent, config: Box) -> tuple[IdleRule, list[dict[str, str]], str]:
    """The rule that holds for a box, its channels, and the mark of exactly that arming."""
    name = box.link.name
    rule = with_overrides(config.idle, read_overrides(name))
    check_rule(rule, config.price_per_hour)
    channels = read_channels(desk, rule)
    parts = [name, asdict(replace(config, idle=rule)), channels, desk.config.currency, box.folders]
    return rule, channels, asked_mark(*parts, desk.config.run.stop_grace)


def ssh_host(box: Agent, config: Box, name: str) -> str:
    target = getattr(box.link, "target", None)
    return str(target.host if target else config.host or name)


def is_webhook(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def read_channels(desk: Desk, rule: IdleRule) -> list[dict[str, str]]:
    """The channels that the rule names, with the URL from each one's file."""
    found = []
    for name in rule.notify:
        if name not in desk.config.notify:
            raise ConfigError(
                f"idle.notify: no channel {name!r}", f'add notify.{name} = "FILE" with its URL'
            )
        path = beside_config(desk.config.notify[name])  # type: ignore[index]
        try:
            url = path.read_text(encoding="utf-8").strip()
        except OSError as no:
            raise ConfigError(f"notify.{name}: {path}: {no.strerror}", "") from no
        if "://" not in url:
            raise ConfigError(f"notify.{name}: {path} holds no URL", "one line, such as ntfy://…")
        found.append({"name": str(name), "url": url})
    return found


def overrides_path(name: str) -> Any:
    folder = laptop_folder() / "keeper"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{name}.json"


def read_overrides(name: str) -> dict[str, Any]:
    """What `fab idle` has set for a box; it holds over the config until `fab idle --reset`."""
    try:
        return dict(json.loads(overrides_path(name).read_text())["overrides"])
    except (OSError, ValueError, KeyError):
        return {}


def write_overrides(name: str, overrides: Mapping[str, Any]) -> None:
    text = json.dumps({"schema": 1, "overrides": dict(overrides)}, indent=1)
    path = overrides_path(name)
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


def changes_of(flags: Mapping[str, str]) -> dict[str, Any]:
    """The values that the flags ask for; UsageError names the flag and what is meant."""
    changes: dict[str, Any] = {}
    for key in ("stop_after", "remind_after", "max_unknown"):
        if flags.get(key):
            flag = "--" + key.replace("_", "-")
            seconds = parse_limit(flags[key], flag)
            if seconds is None and key != "stop_after":
                raise UsageError(f"{flag} off: only --stop-after can be off", "write a time")
            changes.update({"enabled": False} if seconds is None else {key: seconds})
            changes.update({"enabled": True} if key == "stop_after" and seconds else {})
    for key in ("max_hours", "max_cost"):
        if flags.get(key):
            changes[key] = parse_cap(flags[key], "--" + key.replace("_", "-"))
    shortest = changes.get("stop_after")
    if shortest and "remind_after" not in changes:
        changes["remind_after"] = shortest / 3
    return changes


def parse_cap(text: str, flag: str) -> float | None:
    if text == "off":
        return None
    try:
        number = float(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: not a number", 'a number, or "off"') from None
    if not 0 < number < 1e9:
        raise UsageError(f"{flag} {text}: has to be more than 0", 'for no cap write "off"')
    return number


def idle(desk: Desk, action: Mapping[str, bool], flags: Mapping[str, str]) -> list[dict[str, Any]]:
    """`action`: arm, disarm, reset, force, restart, try_notice. Without any and without flags: show."""
    results = []
    changes = changes_of(flags)
    for name in desk.hosts:
        config = desk.box(name)
        with desk.open(name) as box:
            if changes or any(action.values()):
                act(desk, box, name, config, action, changes)
            answer = box.call("idle")
        desk.show.say(f"{name}: {status_line(answer, answer['now'])}")
        show_rule(desk, answer)
        results.append({"box": name, "line": status_line(answer, answer["now"]), **answer})
    return results


def act(
    desk: Desk,
    box: Agent,
    name: str,
    config: Box,
    action: Mapping[str, bool],
    changes: dict[str, Any],
) -> None:
    if desk.dry_run:
        desk.show.note(f"{name}: would be armed with {changes or 'the rule of the config'}")
        return
    if action.get("disarm"):
        box.call("disarm")
        desk.show.warn(f"{name}: disarmed: nothing stops this box now")
        return
    if action.get("reset"):
        write_overrides(name, {})
    elif changes:
        overrides = {**read_overrides(name), **changes}
        check_rule(with_overrides(config.idle, overrides), config.price_per_hour)
        write_overrides(name, overrides)
    if changes or any(action.get(each) for each in ("arm", "reset", "force", "restart")):
        force, restart = bool(action.get("force")), bool(action.get("restart"))
        say_armed(desk, name, arm_keeper(desk, box, config, force, restart))
    if action.get("try_notice"):
        try_notice(desk, box, name)


def say_armed(desk: Desk, name: str, armed: Mapping[str, Any]) -> None:
    """What arming did, what a stop does to the bill and the data, and what is not sure."""
    provider, stop = armed["provider"], armed["stop"]
    why = "your word" if provider["told"] else ", ".join(provider["marks"]) or "no mark"
    desk.show.done(f"{name}: keeper armed ({armed['mode']}), box of: {provider['name']} ({why})")
    if stop["how"] == "report" and provider["name"] == "unknown":
        desk.show.warn(
            f"{name}: an idle box is only reminded about, NOTHING switches it off"
            f" ({stop['effect']}): set boxes.{name}.provider or boxes.{name}.stop.command"
        )
    else:
        desk.show.note(f"at a stop: {stop['effect']}")
    for line in [*armed.get("problems", []), *armed.get("notes", [])]:
        desk.show.warn(f"{name}: {line}")
    if not armed["after_reboot"]:
        desk.show.warn(f"{name}: NOT armed after a reboot: {after_reboot(armed['mode'])}")
    note = caps_note(armed["rule"])
    if note:
        desk.show.note(note)


def after_reboot(mode: str) -> str:
    """What becomes of a keeper that the box itself does not start."""
    if mode == "detached":
        return "the box has neither init nor cron; the next fab status starts the keeper again"
    return "nothing starts the keeper then"


def try_notice(desk: Desk, box: Agent, name: str) -> None:
    told = box.call("notices", box=name)
    for line in told["failed"]:
        desk.show.warn(f"{name}: {line}")
    sent = len(told["channels"]) - len(told["failed"])
    desk.show.done(f"{name}: {sent} of {len(told['channels'])} channels, and the terminals")


def show_rule(desk: Desk, answer: Mapping[str, Any]) -> None:
    """The rule that holds, where each value comes from, and what every sensor says."""
    if not answer.get("rule"):
        return
    rule, where = answer["rule"]["rule"], answer["rule"]["origins"]
    values = {**rule, **answer["rule"]["limits"]}
    rows = [(key, shown(key, values[key]), where[key]) for key in sorted(where) if key in values]
    desk.show.table(["rule", "value", "from"], rows)
    if answer.get("status"):
        signals = answer["status"]["signals"].items()
        desk.show.table(["sensor", "says", ""], [(name, *each) for name, each in signals])
        for line in answer["status"]["problems"]:
            desk.show.warn(line)


def shown(key: str, value: Any) -> str:
    if value is None:
        return "none"
    if key.endswith(("_after", "_unknown")) or key == "poll":
        return show_duration(value)
    unit = {"gpu_below": " %", "cpu_below": " %", "net_below": " MiB/s", "disk_below": " MiB/s"}
    return f"{value}{unit.get(key, '')}"
