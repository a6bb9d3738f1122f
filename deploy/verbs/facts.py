"""`fab facts`: what a box is."""

from __future__ import annotations

from typing import Any

from deploy.plan.quantities import show_size
from deploy.verbs.desk import Desk


def facts(desk: Desk) -> list[dict[str, Any]]:
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            found = box.call("facts", repeatable=True)
        results.append({"box": name, **found})
        desk.show.table(["", name], rows_of(found))
    return results


def rows_of(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The table of one box's facts."""
    engine, cards = found["engine"], found["gpus"]["cards"]
    rows = [
        ("system", f"{found['system']['os']}, {found['system']['machine']}"),
        ("Python", f"{found['python']['version']} ({found['python']['path']})"),
        ("size", f"{found['cpus']} cores, {show_size(found['memory'])} memory"),
        ("engine", f"Docker {engine['version']}" if engine["answers"] else engine["why"]),
        ("GPUs", ", ".join(card["name"] for card in cards) or "none"),
    ]
    for key in ("data", "input"):
        place = found["places"][key]
        rows.append((key, f"{place['path']} ({show_size(place['free'])} free)"))
    return rows + [("note", note) for note in found["notes"]]
