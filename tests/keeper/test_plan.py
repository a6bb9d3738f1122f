"""What the laptop plans for the keeper: limits as people write them, origins, providers, the line."""

import pytest

from deploy.errors import ConfigError, UsageError
from deploy.plan.config import Box, IdleRule, StopRule, read_config
from deploy.plan.keeper import (
    caps_note,
    check_rule,
    origins,
    parse_limit,
    status_line,
    stop_plan,
    what_keeps,
    with_overrides,
)
from deploy.plan.providers import PRESETS, choose, questions, table_rows

NOTHING = {"env": [], "files": [], "dmi": {}, "metadata": [], "root": True, "systemd": True}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("1h30m", 5400), ("45s", 45), ("off", None), (" 2h ", 7200)],
)
def test_limits_that_mean_something(text, seconds):
    assert parse_limit(text, "--stop-after") == seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "at once"),
        ("-1", "negative"),
        ("-30m", "expected a duration"),
        ("90", "90 what?"),
        ("1.5", "1.5 what?"),
        ("1:30", "hours or minutes"),
        ("soon", "expected a duration"),
        ("", "expected a duration"),
    ],
)
def test_limits_that_are_refused_each_with_its_reason(text, words):
    with pytest.raises(UsageError) as no:
        parse_limit(text, "--stop-after")
    assert words in no.value.message and "--stop-after" in no.value.message


def test_off_in_the_config_switches_the_rule_off_and_leaves_the_caps():
    config = read_config({"idle": {"stop_after": "off", "max_hours": 5}, "boxes": {"a": {}}})
    assert not config.boxes["a"].idle.enabled and config.boxes["a"].idle.max_hours == 5
    own = read_config({"boxes": {"a": {"idle": {"stop_after": "off"}}}})
    assert not own.boxes["a"].idle.enabled and own.idle.enabled
    back = read_config({"idle": {"stop_after": "off"}, "boxes": {"a": {"idle": {"enabled": True}}}})
    assert back.boxes["a"].idle.enabled


@pytest.mark.parametrize("value", [0, -1, 90, "0x", "1:30", True])
def test_other_forms_in_the_config_are_refused_with_their_path(value):
    with pytest.raises(ConfigError) as no:
        read_config({"boxes": {"a": {"idle": {"stop_after": value}}}})
    assert "boxes.a.idle.stop_after" in no.value.message


@pytest.mark.parametrize(
    ("rule", "price", "word"),
    [
        (IdleRule(stop_after=0.0), None, "stop_after"),
        (IdleRule(stop_after=30.0), None, "stop_after"),
        (IdleRule(remind_after=3600.0), None, "remind_after"),
        (IdleRule(poll=0.0), None, "poll"),
        (IdleRule(max_cost=5.0), None, "max_cost"),
        (IdleRule(max_cost=0.0), 1.0, "max_cost"),
        (IdleRule(max_hours=0.0), None, "max_hours"),
    ],
)
def test_rules_that_contradict_themselves(rule, price, word):
    with pytest.raises(ConfigError) as no:
        check_rule(rule, price)
    assert f"idle.{word}" in no.value.message


def test_rules_that_hold():
    check_rule(IdleRule(), None)
    check_rule(IdleRule(enabled=False, stop_after=0.0), None)
    check_rule(IdleRule(max_cost=5.0, max_hours=2.0), 1.0)


def test_where_each_value_comes_from():
    document = {
        "idle": {"remind_after": "5m", "poll": "10s"},
        "boxes": {"a": {"idle": {"poll": "5s", "stop_after": "off"}}},
    }
    found = origins(document, "a", {"max_hours": 3.0})
    assert found["remind_after"] == "idle"
    assert found["poll"] == found["enabled"] == "boxes.a.idle"
    assert found["max_hours"] == "fab idle"
    assert found["max_unknown"] == "default"
    assert with_overrides(IdleRule(), {"max_hours": 3.0, "nonsense": 1}).max_hours == 3.0


def test_a_rule_without_caps_is_said():
    assert "max_cost" in caps_note({"max_hours": None, "max_cost": None})
    assert caps_note({"max_hours": 8.0}) == ""


FOUND = {
    "autodl": {"env": ["AutoDLContainerUUID"], "files": ["/root/autodl-tmp"]},
    "gpuhub": {
        "env": ["AutoDLContainerUUID", "AutoDLRegion"],
        "files": ["/root/gpuhub-tmp", "/root/autodl-tmp"],
        "host": "a1.gpuhub.com",
    },
    "gpushare": {"files": ["/hy-tmp"], "host": "i-1.gpushare.com"},
    "openbayes": {"files": ["/openbayes/home", "/openbayes/input"]},
    "aliyun": {"dmi": {"product_name": "Alibaba Cloud ECS"}, "metadata": ["aliyun"]},
    "tencent": {"dmi": {"sys_vendor": "Tencent Cloud"}, "metadata": ["tencent"]},
    "aws": {"dmi": {"sys_vendor": "Amazon EC2"}, "metadata": ["aws"]},
    "gcp": {"dmi": {"product_name": "Google Compute Engine"}, "metadata": ["gcp"]},
    "azure": {
        "dmi": {"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"},
        "metadata": ["azure"],
    },
    "runpod": {"env": ["RUNPOD_POD_ID", "RUNPOD_DC_ID"]},
    "vast": {"env": ["CONTAINER_ID", "VAST_CONTAINERLABEL"]},
    "hetzner": {"dmi": {"sys_vendor": "Hetzner"}, "metadata": ["hetzner"]},
    "matpool": {"files": ["/public/script"], "host": "hz-4.matpool.com"},
}


@pytest.mark.parametrize("name", FOUND)
def test_two_marks_tell_a_provider_and_one_does_not(name):
    marks = dict(FOUND[name])
    host = marks.pop("host", "")
    choice = choose("auto", {**NOTHING, **marks}, host)
    assert choice.preset.name == name and len(choice.marks) >= 2 and not choice.told


@pytest.mark.parametrize("name", FOUND)
def test_any_single_mark_is_not_enough_to_switch_a_box_off(name):
    marks = dict(FOUND[name])
    host = marks.pop("host", "")
    single = [({}, host)] if host else []
    for kind, found in marks.items():
        each = [{k: v} for k, v in found.items()] if kind == "dmi" else [[v] for v in found]
        single += [({kind: one}, "") for one in each]
    for one, at in single:
        choice = choose("auto", {**NOTHING, **one}, at)
        assert choice.preset.name == "unknown", (one, at)
        assert stop_plan(Box(), choice, NOTHING)["how"] == "report"


def test_an_unknown_box_is_reported_on_only():
    choice = choose("auto", NOTHING, "203.0.113.7")
    assert choice.preset.name == "unknown"
    assert stop_plan(Box(), choice, NOTHING)["how"] == "report"


def test_the_users_word_counts_and_an_unknown_word_is_refused():
    assert choose("vm", NOTHING, "").told
    with pytest.raises(ConfigError):
        choose("moon", NOTHING, "")


@pytest.mark.parametrize(
    ("name", "how", "command"),
    [
        ("vm", "inside", ["systemctl", "poweroff"]),
        ("gcp", "inside", ["systemctl", "poweroff"]),
        ("aws", "inside", ["systemctl", "poweroff"]),
        ("autodl", "inside", ["bash", "/usr/bin/shutdown"]),
        ("runpod", "inside", ["runpodctl", "pod", "stop", "${RUNPOD_POD_ID}"]),
        ("lambda", "report", None),  # stopping means deleting
        ("hetzner", "report", None),  # a power-off keeps billing
        ("aliyun", "report", None),
        ("tencent", "report", None),
        ("onprem", "report", None),
        ("matpool", "report", None),
    ],
)
def test_how_each_box_is_stopped(name, how, command):
    plan = stop_plan(Box(), choose(name, NOTHING, ""), NOTHING)
    assert plan["how"] == how and plan["effect"]
    assert (plan["commands"][0] if plan["commands"] else None) == command


def test_a_power_off_without_root_goes_through_sudo():
    plan = stop_plan(Box(), choose("vm", NOTHING, ""), {**NOTHING, "root": False})
    assert plan["commands"] == [["sudo", "-n", "systemctl", "poweroff"]]


def test_azure_is_never_just_powered_off():
    plan = stop_plan(Box(), choose("azure", NOTHING, ""), NOTHING)
    assert all("deallocate" in " ".join(command) for command in plan["commands"])


def test_deleting_needs_the_users_word():
    told = Box(stop=StopRule(allow_data_loss=True))
    plan = stop_plan(told, choose("lambda", NOTHING, ""), NOTHING)
    assert plan["how"] == "inside" and plan["calls"][0]["url"].endswith("/terminate")


def test_own_commands_come_first_and_a_shared_server_is_never_switched_off():
    own = Box(stop=StopRule(command=("/opt/off", "now")))
    assert stop_plan(own, choose("gcp", NOTHING, ""), NOTHING)["commands"] == [["/opt/off", "now"]]
    laptop = Box(stop=StopRule(from_laptop=("aliyun", "ecs")))
    assert stop_plan(laptop, choose("aliyun", NOTHING, ""), NOTHING)["how"] == "laptop"
    shared = Box(shared=True, stop=StopRule(command=("/opt/off",)))
    assert stop_plan(shared, choose("gcp", NOTHING, ""), NOTHING)["how"] == "report"


def test_no_key_stands_in_a_rule():
    for each in PRESETS:
        for call in each.calls:
            assert "${" in call["headers"]["Authorization"]


def test_every_provider_says_what_a_stop_does_and_how_sure_that_is():
    for row in table_rows():
        assert all(row) and row[-1] in ("s", "s2", "m")
    assert {"env", "files", "metadata"} == set(questions())


ARMED = {
    "armed": True,
    "after_reboot": True,
    "hold": None,
    "rule": {
        "rule": {"enabled": True, "stop_after": 1800.0},
        "stop": {"how": "inside"},
    },
    "status": {
        "stopping": None,
        "decision": {
            "action": "keep",
            "cause": "idle",
            "reason": "r",
            "idle_for": 720.0,
            "stops_in": 1080.0,
        },
    },
}


def test_the_line_of_an_armed_box():
    line = status_line(ARMED, 1e9)
    assert line.startswith("auto-stop: armed, 12 min idle of 30 min, stops ")


def test_what_is_not_as_it_should_be_is_loud():
    assert "NOT armed" in status_line({"armed": False, "why_not": "no rule"}, 1e9)
    assert "NOT armed after a reboot" in status_line({**ARMED, "after_reboot": False}, 1e9)
    failed = {"tries": 2, "accepted": False, "for_laptop": False, "last": "exit 1"}
    stopping = {**ARMED, "status": {**ARMED["status"], "stopping": failed}}
    assert "STOP FAILED 2 times (exit 1)" in status_line(stopping, 1e9)
    report = {**ARMED, "rule": {**ARMED["rule"], "stop": {"how": "report"}}}
    assert "reminders only" in status_line(report, 1e9)
    off = {**ARMED, "rule": {**ARMED["rule"], "rule": {"enabled": False, "stop_after": 1.0}}}
    assert "auto-stop: OFF" in status_line(off, 1e9)


@pytest.mark.parametrize(
    "answer, answers, says",
    [
        ({"armed": False}, True, "Nothing stops it: fab idle --arm --host box, or fab down"),
        ({"armed": True, "cause": "idle"}, True, "Enter keeps it for an hour"),
        ({"armed": True, "cause": "idle"}, False, "To keep it: fab hold 1h --host box"),
        ({"armed": True, "cause": "cost"}, True, "Only another cap keeps it: fab idle --max-cost"),
        ({"armed": True, "cause": "lifetime"}, True, "fab idle --max-hours --host box"),
    ],
)
def test_a_reminder_says_what_helps(answer, answers, says):
    status = {"decision": {"cause": answer.get("cause")}}
    assert says in what_keeps({**answer, "status": status}, "box", answers)
