"""The decision table: one row a situation; looks are written as letters, one a poll."""

from dataclasses import replace

import pytest

from deploy.onbox.idle import (
    ABSENT,
    ACTIVE,
    IDLE,
    UNKNOWN,
    Moment,
    Rule,
    Sample,
    Signal,
    decide,
    worth_keeping,
)

POLL = 60.0
RULE = Rule(remind_after=600, stop_after=1800, max_unknown=7200, poll=POLL)
HOURS = RULE._replace(max_hours=10)
MONEY = RULE._replace(max_cost=20.0, price_per_hour=2.0)
LETTERS = {"a": ACTIVE, "i": IDLE, "u": UNKNOWN, "x": ABSENT}


def looks(text, end=100_000.0, epoch="boot-rule"):
    """`aii` = three looks, the last one at `end`; `.` = a look that was not taken."""
    samples = []
    for place, letter in enumerate(text):
        at = end - (len(text) - 1 - place) * POLL
        if letter != ".":
            signals = {"gpu": Signal(LETTERS[letter], letter), "cpu": Signal(IDLE, "2 %")}
            if letter == "x":
                signals = {"gpu": Signal(ABSENT)}
            samples.append(Sample(at, 1e9 + at, epoch, signals))
    return samples


def now(at=100_000.0, uptime=0.0, spent=0.0, epoch="boot-rule"):
    return Moment(at, epoch, uptime, spent)


TABLE = [
    # what it is about, looks, rule, moment, action, cause, level
    ("no look yet", "", RULE, now(), "keep", "few", 0),
    ("one idle look", "i", RULE, now(), "keep", "few", 0),
    ("two idle looks", "ii", RULE, now(), "keep", "few", 0),
    ("three idle looks, long before", "iii", RULE, now(), "keep", "idle", 0),
    ("active now", "a", RULE, now(), "keep", "active", 0),
    ("active after a long idle time", "i" * 60 + "a", RULE, now(), "keep", "active", 0),
    ("active in the middle", "i" * 29 + "a" + "ii", RULE, now(), "keep", "few", 0),
    ("GPU 0 0 90 0 0", "iiaii", RULE, now(), "keep", "few", 0),
    ("9 min idle", "a" + "i" * 9, RULE, now(), "keep", "idle", 0),
    ("10 min idle", "a" + "i" * 10, RULE, now(), "remind", "idle", 1),
    ("19 min idle", "a" + "i" * 19, RULE, now(), "remind", "idle", 1),
    ("20 min idle: half of what was left", "a" + "i" * 20, RULE, now(), "remind", "idle", 2),
    ("27 min idle", "a" + "i" * 27, RULE, now(), "remind", "idle", 2),
    ("28 min idle: last call", "a" + "i" * 28, RULE, now(), "remind", "idle", 3),
    ("29 min idle", "a" + "i" * 29, RULE, now(), "remind", "idle", 3),
    ("30 min idle", "a" + "i" * 30, RULE, now(), "stop", "idle", 0),
    ("50 min idle", "a" + "i" * 50, RULE, now(), "stop", "idle", 0),
    ("idle from the first look on", "i" * 31, RULE, now(), "stop", "idle", 0),
    ("between two polls", "a" + "i" * 30, RULE, now(100_030.0), "stop", "idle", 0),
    ("two looks of thirty", "i" + "." * 29 + "i", RULE, now(), "keep", "few", 0),
    ("one look of four: gaps too long", "i...i" * 12, RULE, now(), "keep", "few", 0),
    ("one look of three is enough", "i.." * 11 + "i", RULE, now(), "stop", "idle", 0),
    ("a gap in the middle", "i" * 20 + "...." + "i" * 20, RULE, now(), "remind", "idle", 1),
    ("a short gap", "i" * 20 + ".." + "i" * 20, RULE, now(), "stop", "idle", 0),
    ("the last look is old", "i" * 40, RULE, now(100_240.0), "keep", "few", 0),
    ("the last look is 3 polls old", "i" * 40, RULE, now(100_180.0), "stop", "idle", 0),
    ("the clock ran backwards", "i" * 40, RULE, now(99_000.0), "keep", "few", 0),
    ("another boot or rule", "i" * 40, RULE, now(epoch="other"), "keep", "few", 0),
    ("unknown now", "uuu", RULE, now(), "keep", "unknown", 0),
    ("unknown, two looks", "uu", RULE, now(), "keep", "few", 0),
    ("unknown for as long as an idle stop", "a" + "u" * 30, RULE, now(), "keep", "unknown", 0),
    ("unknown 99 min: not yet", "a" + "u" * 99, RULE, now(), "keep", "unknown", 0),
    ("unknown 100 min of 120", "a" + "u" * 100, RULE, now(), "remind", "unknown", 1),
    ("unknown 110 min of 120", "a" + "u" * 110, RULE, now(), "remind", "unknown", 2),
    ("unknown 118 min of 120", "a" + "u" * 118, RULE, now(), "remind", "unknown", 3),
    ("unknown 120 min", "a" + "u" * 120, RULE, now(), "stop", "unknown", 0),
    ("unknown, once active", "u" * 60 + "a" + "u" * 60, RULE, now(), "keep", "unknown", 0),
    ("unknown 2 h, then active", "u" * 130 + "a", RULE, now(), "keep", "active", 0),
    ("unknown 2 h, then known idle", "u" * 119 + "iii", RULE, now(), "keep", "idle", 0),
    ("unknown 2 h, then idle 30 min", "u" * 119 + "i" * 31, RULE, now(), "stop", "idle", 0),
    ("idle, one unknown look in it", "i" * 15 + "u" + "i" * 15, RULE, now(), "stop", "idle", 0),
    ("idle, two in three unknown", "iuu" * 10 + "i", RULE, now(), "stop", "idle", 0),
    ("idle, three in four unknown", "iuuu" * 20 + "i", RULE, now(), "keep", "few", 0),
    ("idle long, unknown just now", "i" * 31 + "u", RULE, now(), "keep", "few", 0),
    ("idle long, unknown for four looks", "i" * 31 + "uuuu", RULE, now(), "keep", "unknown", 0),
    ("idle and unknown by turns for 2 h", "iuuuu" * 24 + "u", RULE, now(), "stop", "unknown", 0),
    ("nothing but absent sensors", "x" * 40, RULE, now(), "keep", "unknown", 0),
    ("the rule is off", "i" * 90, RULE._replace(enabled=False), now(), "keep", "off", 0),
    ("off, lifetime over", "i", HOURS._replace(enabled=False), now(uptime=36000), "stop", "lifetime", 0),
    ("lifetime far off", "a", HOURS, now(uptime=3600), "keep", "active", 0),
    ("lifetime 20 min off", "a", HOURS, now(uptime=36000 - 1200), "remind", "lifetime", 1),
    ("lifetime 10 min off", "a", HOURS, now(uptime=36000 - 600), "remind", "lifetime", 2),
    ("lifetime 2 min off", "a", HOURS, now(uptime=36000 - 120), "remind", "lifetime", 3),
    ("lifetime over, a run works", "aaa", HOURS, now(uptime=36000), "stop", "lifetime", 0),
    ("lifetime over, sensors unknown", "uuu", HOURS, now(uptime=36000), "stop", "lifetime", 0),
    ("lifetime over, no look at all", "", HOURS, now(uptime=36000), "stop", "lifetime", 0),
    ("no lifetime", "a", RULE, now(uptime=9e9), "keep", "active", 0),
    ("money far off", "a", MONEY, now(spent=10), "keep", "active", 0),
    ("money for 20 min", "a", MONEY, now(spent=20 - 0.66), "remind", "cost", 1),
    ("money for 9 min", "a", MONEY, now(spent=20 - 0.3), "remind", "cost", 2),
    ("money for 1 min", "a", MONEY, now(spent=20 - 0.03), "remind", "cost", 3),
    ("money gone, a run works", "aaa", MONEY, now(spent=20), "stop", "cost", 0),
    ("money gone, sensors unknown", "uuu", MONEY, now(spent=25), "stop", "cost", 0),
    ("no cap", "a", RULE, now(spent=9e9), "keep", "active", 0),
    ("a cap without a price", "a", RULE._replace(max_cost=1.0), now(spent=9e9), "keep", "active", 0),
    ("idle first, lifetime later", "i" * 31, HOURS, now(uptime=36000 - 60), "stop", "idle", 0),
    ("lifetime first, idle later", "i" * 12, HOURS, now(uptime=36000 - 60), "remind", "lifetime", 3),
    ("both caps: the sooner one", "a", HOURS._replace(max_cost=20.0, price_per_hour=2.0),
     now(uptime=36000 - 1000, spent=20 - 0.03), "remind", "cost", 3),
    ("stop without a lead", "i" * 31, RULE._replace(remind_after=1800), now(), "stop", "idle", 0),
    ("no lead: no reminder", "i" * 30, RULE._replace(remind_after=1800), now(), "keep", "idle", 0),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_the_table(row):
    _, text, rule, moment, action, cause, level = row
    decision = decide(looks(text), rule, moment)
    assert (decision.action, decision.cause, decision.level) == (action, cause, level)
    assert decision.reason


def test_the_table_is_as_long_as_promised():
    assert len({row[0] for row in TABLE}) == len(TABLE) >= 60


@pytest.mark.parametrize("hours", [6, -6, 24, 40 * 365 * 24])
def test_a_jump_of_the_wall_clock_begins_a_new_count(hours):
    samples = looks("i" * 31)
    jumped = [
        replace(s, wall=s.wall + hours * 3600) if place >= 25 else s
        for place, s in enumerate(samples)
    ]
    assert decide(samples, RULE, now()).action == "stop"
    assert decide(jumped, RULE, now()).action == "keep"


def test_a_changed_limit_stops_after_the_new_limit_and_not_at_once():
    ten_minutes_idle = looks("i" * 11, epoch="boot-30m")
    rule = RULE._replace(remind_after=120, stop_after=480)
    at_once = decide(ten_minutes_idle, rule, now(epoch="boot-8m"))
    assert at_once.action == "keep"
    later = decide(looks("iii", epoch="boot-8m"), rule, now(epoch="boot-8m"))
    assert later.stops_in == 480 - 120


def test_reasons_name_the_sensor_and_the_limit():
    assert decide(looks("i" * 31), RULE, now()).reason.startswith(
        "idle 30 min, limit 30 min: gpu: i"
    )
    assert "gpu: u" in decide(looks("uuu"), RULE, now()).reason
    assert decide(looks("a"), RULE, now()).reason == "gpu: a"


def test_only_looks_that_still_matter_are_kept():
    for text in ("i" * 40 + "a" + "i" * 19, "a" * 50, "u" * 30 + "i" * 10, "i...i"):
        samples, moment = looks(text), now()
        kept = worth_keeping(samples, RULE, moment)
        assert len(kept) <= len(samples)
        assert decide(kept, RULE, moment) == decide(samples, RULE, moment)
    assert len(worth_keeping(looks("a" * 50), RULE, now())) == 1


def test_the_count_says_when_it_stops():
    decision = decide(looks("a" + "i" * 12), RULE, now())
    assert (decision.idle_for, decision.stops_in) == (720.0, 1080.0)
