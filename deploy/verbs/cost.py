"""`fab cost`: hours and money per box, day and run, with the share that was idle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from deploy.effects.settings import laptop_folder
from deploy.errors import KitError
from deploy.plan.cost import Row, bar, by_day, by_run, total
from deploy.verbs.desk import Desk


def cost(desk: Desk) -> list[dict[str, Any]]:
    results = []
    for name in desk.hosts:
        ledger, note = read_ledger(desk, name)
        days, runs = by_day(ledger["lives"]), by_run(ledger["lives"])
        currency = desk.box(name).currency or desk.config.currency
        if note:
            desk.show.warn(f"{name}: {note}")
        if desk.box(name).price_per_hour is None and not total(days).cost:
            currency = ""
            desk.show.warn(f"{name}: no price is set (boxes.{name}.price_per_hour): hours only")
        show(desk, f"{name}, by day", "day", [*days, total(days)], currency)
        if runs:
            show(desk, f"{name}, by run", "run", runs, currency)
        rows = {"days": [as_json(each) for each in days], "runs": [as_json(each) for each in runs]}
        sum_ = as_json(total(days))
        results.append({"box": name, "currency": currency, "note": note, "total": sum_, **rows})
    return results


def read_ledger(desk: Desk, name: str) -> tuple[dict[str, Any], str]:
    """The box's ledger; our last copy of it where the box does not answer, with a note."""
    folder = laptop_folder() / "cost"
    folder.mkdir(mode=0o700, exist_ok=True)
    copy = folder / f"{name}.json"
    try:
        with desk.open(name) as box:
            ledger = box.call("cost")
    except KitError as no:
        if not copy.is_file():
            raise
        return dict(json.loads(copy.read_text())), f"{no.message}; this is the last copy"
    temporary = copy.with_suffix(".new")
    temporary.write_text(json.dumps(ledger))
    temporary.replace(copy)
    return ledger, ""


def as_json(row: Row) -> dict[str, Any]:
    return {**row._asdict(), "idle_share": round(row.idle_share, 4)}


def show(desk: Desk, title: str, first: str, rows: Sequence[Row], currency: str) -> None:
    longest = max((row.on for row in rows if row.name != "total"), default=0.0)
    table = [
        (
            row.name,
            f"{row.on / 3600:.2f}",
            f"{row.idle_share * 100:.0f} %" if first == "day" else "",
            f"{row.cost:.2f} {currency}" if currency else "–",
            bar(row, longest) if row.name != "total" else "",
        )
        for row in rows
    ]
    desk.show.table([first, "hours", "idle", "cost", "█ busy ░ idle"], table, title)
