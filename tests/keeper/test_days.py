"""Random days: never stopped at work, never left idle, never over a cap. bench/keeper does 10,000."""

import random

import pytest

from bench.days import Day, End, Span, draw_day, is_late, live, over_cap, simulate, stopped_wrongly
from deploy.onbox.idle import Rule

RULE = Rule(remind_after=600, stop_after=1800, max_unknown=7200, poll=60, max_hours=5, max_cost=8)


def test_a_hundred_random_days():
    total = simulate(0, 100)
    assert total.stops > 100
    assert (total.wrongly, total.late, total.over_cap) == (0, 0, 0), total.bad_seeds


@pytest.mark.slow
def test_ten_thousand_random_days():
    total = simulate(0, 10_000)
    assert total.stops > 10_000
    assert (total.wrongly, total.late, total.over_cap) == (0, 0, 0), total.bad_seeds


def test_the_days_have_what_the_rule_has_to_cope_with():
    drawn = [draw_day(seed) for seed in range(200)]
    for kind in ("runs", "foreign", "typing", "uploads", "gpu_faults", "blackouts", "reboots"):
        assert sum(bool(getattr(day, kind)) for day in drawn) > 10, kind
    for kind in ("jumps", "changes"):
        assert sum(bool(getattr(day, kind)) for day in drawn) > 10, kind
    causes = {
        cause for seed in range(200) for cause in live(drawn[seed], random.Random(seed)).causes
    }
    assert causes == {"idle", "unknown", "lifetime", "cost"}


def test_the_judge_sees_a_stop_at_work_and_one_too_early():
    day = Day(RULE, runs=[Span(1000, 2000)])
    assert stopped_wrongly(day, RULE, 1500, "idle", [0.0], [])
    assert stopped_wrongly(day, RULE, 3000, "idle", [0.0], [])
    assert not stopped_wrongly(day, RULE, 3800, "idle", [0.0], [])
    assert stopped_wrongly(day, RULE, 3800, "unknown", [0.0], [])
    assert not stopped_wrongly(day, RULE, 1500, "cost", [0.0], [])


def test_the_judge_sees_a_box_left_idle_and_one_over_its_cap():
    day = Day(RULE, runs=[Span(1000, 2000)])
    assert not is_late(day, RULE, 3860, [0.0], [])
    assert is_late(day, RULE, 3861, [0.0], [])
    assert not is_late(day, RULE, 3861, [0.0, 3000.0], [])
    assert over_cap(day, RULE, 18_061, 0.0, 0.0) and not over_cap(day, RULE, 18_059, 0.0, 0.0)
    assert over_cap(day, RULE, 0.0, 0.0, 8.04) and not over_cap(day, RULE, 0.0, 0.0, 8.03)


def test_a_rule_that_never_stops_is_found_late(monkeypatch):
    from bench import days

    never = days.decide([], RULE, days.Moment(0.0, "e"))
    monkeypatch.setattr(days, "decide", lambda *_: never)
    ends = [live(draw_day(seed), random.Random(seed)) for seed in range(20)]
    assert all(isinstance(end, End) and (end.late or end.over_cap) for end in ends)


def test_a_rule_that_stops_at_once_is_found_wrong(monkeypatch):
    from bench import days

    idle = days.decide([], RULE, days.Moment(0.0, "e"))._replace(action="stop", cause="idle")
    monkeypatch.setattr(days, "decide", lambda *_: idle)
    assert sum(live(draw_day(seed), random.Random(seed)).wrongly for seed in range(20)) > 20
