"""PURE: hours and money of a box from its ledger: by day, by run, and as bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple


class Row(NamedTuple):
    """Seconds on, seconds idle, money, of one day or one run."""

    name: str
    on: float
    idle: float
    cost: float

    @property
    def idle_share(self) -> float:
        return self.idle / self.on if self.on else 0.0


def by_day(lives: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row a day of the reader's zone, oldest first."""
    days: dict[str, list[float]] = {}
    for hour, row in hours_of(lives):
        moment = datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=timezone.utc)
        add(days, moment.astimezone().strftime("%Y-%m-%d"), row["on"], row["idle"], row["cost"])
    return [Row(day, *sums) for day, sums in sorted(days.items())]


def by_run(lives: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row a run; an hour's money is shared by the seconds that each run was alive in it."""
    runs: dict[str, list[float]] = {}
    for _, row in hours_of(lives):
        alive = sum(row["runs"].values())
        for run, seconds in row["runs"].items():
            part = min(alive, row["on"]) / row["on"] if row["on"] else 0.0
            add(runs, run, seconds, 0.0, row["cost"] * part * seconds / alive if alive else 0.0)
    return [Row(run, *sums) for run, sums in sorted(runs.items())]


def total(rows: Iterable[Row]) -> Row:
    sums: dict[str, list[float]] = {}
    add(sums, "total", 0.0, 0.0, 0.0)
    for row in rows:
        add(sums, "total", row.on, row.idle, row.cost)
    return Row("total", *sums["total"])


def hours_of(lives: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for life in lives:
        yield from life["hours"].items()


def add(sums: dict[str, list[float]], key: str, on: float, idle: float, cost: float) -> None:
    row = sums.setdefault(key, [0.0, 0.0, 0.0])
    for place, value in enumerate((on, idle, cost)):
        row[place] += value


def bar(row: Row, longest: float, width: int = 24) -> str:
    """`█████░░░`: busy and idle time of a row, as long as its part of the longest one."""
    if longest <= 0:
        return ""
    whole = round(width * row.on / longest)
    idle = round(whole * row.idle_share)
    return "█" * (whole - idle) + "░" * idle
