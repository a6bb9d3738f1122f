"""The ledger over lives, and what is made of it."""

import os
import time

from deploy.onbox import ledger as box
from deploy.onbox.ledger import Ledger, read_ledger
from deploy.plan.cost import Row, bar, by_day, by_run, total


def test_a_keeper_that_was_away_leaves_no_hole_in_the_account(own_home):
    first = Ledger(2.0)
    first.add(3600.0, False, ["a"], 1e9)
    first.save(3600.0, at_once=True)
    again = Ledger(2.0)
    again.add(7200.0, True, [], 1e9 + 3600)
    assert again.account["on"] == 7200.0
    assert again.spent() == 4.0


def test_money_adds_up_over_lives(own_home, monkeypatch):
    for life, hours, ago in (("one", 1, 9e5), ("two", 3, 9e4)):
        monkeypatch.setattr(box, "life", lambda life=life: life)
        monkeypatch.setattr(box, "uptime", lambda ago=ago: ago)
        account = Ledger(2.0)
        account.add(hours * 3600.0, False, [], 1e9)
        account.save(1.0, at_once=True)
    assert account.spent() == 8.0
    assert [each["life"] for each in read_ledger(account.folder)] == ["one", "two"]


def test_an_account_that_is_damaged_is_left_out(own_home):
    account = Ledger(1.0)
    with open(os.path.join(account.folder, "x.json"), "w") as file:
        file.write("{")
    account.add(10.0, False, [], time.time())
    account.save(10.0, at_once=True)
    assert len(read_ledger(account.folder)) == 1


LIVES = [
    {
        "hours": {
            "2026-11-29T10": {"on": 3600, "idle": 0, "cost": 2.0, "runs": {"a": 3600}},
            "2026-11-29T11": {"on": 3600, "idle": 1800, "cost": 2.0, "runs": {"a": 900, "b": 900}},
        }
    },
    {"hours": {"2026-11-30T10": {"on": 1800, "idle": 1800, "cost": 1.0, "runs": {}}}},
]


def test_hours_and_money_by_day(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    days = by_day(LIVES)
    assert days == [
        Row("2026-11-29", 7200, 1800, 4.0),
        Row("2026-11-30", 1800, 1800, 1.0),
    ]
    assert total(days) == Row("total", 9000, 3600, 5.0)
    assert days[0].idle_share == 0.25


def test_a_day_is_the_readers_day(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    late = [{"hours": {"2026-11-29T20": {"on": 60, "idle": 0, "cost": 1.0, "runs": {}}}}]
    assert by_day(late)[0].name == "2026-11-30"
    monkeypatch.delenv("TZ")
    time.tzset()


def test_two_runs_share_the_money_of_an_hour():
    rows = {row.name: row for row in by_run(LIVES)}
    assert rows["a"].cost == 2.0 + 0.5 and rows["b"].cost == 0.5
    assert rows["a"].on == 4500


def test_bars_show_busy_and_idle():
    assert bar(Row("x", 100, 50, 0), 100, 10) == "█████░░░░░"
    assert bar(Row("x", 50, 0, 0), 100, 10) == "█████"
    assert bar(Row("x", 0, 0, 0), 0) == ""
