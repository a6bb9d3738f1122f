"""`fab status` over many boxes: all asked at once, drawn once, or again and again with --watch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from deploy.effects.copies import copy_path, keep_copy, last_copy
from deploy.effects.fleet import Asked, Reply, ask_all, asked
from deploy.effects.settings import beside_config
from deploy.plan.fleet import HEADS, Seen, row
from deploy.verbs.desk import Desk, folders_of

COPY, SILENT = "overview.json", "silent.json"
EVERY = 5.0


def fleet_status(
    desk: Desk, names: list[str], deadline: float = 10.0, watch: bool = False, every: float = EVERY
) -> list[dict[str, Any]]:
    """A row a box: what it says now, or what it last said and how long ago that was."""
    boxes = [box_to_ask(desk, name) for name in names]
    if not watch:
        with desk.show.progress("boxes that answered", len(boxes), unit="boxes") as bar:
            seen = look(boxes, deadline, lambda: bar.advance(1))
        desk.show.table(HEADS, rows_of(desk, seen), wide=True)
        say_faults(desk, seen)
        return [as_json(each) for each in seen]
    with desk.show.live() as draw:
        for seen in rounds(boxes, deadline, every):
            draw(HEADS, rows_of(desk, seen))
    return []


def boxes_meant(desk: Desk, run: str, watch: bool) -> list[str] | None:
    """The boxes of a look at many: those that were named, else all of gpubox.toml; None where one
    box is to be shown in full."""
    names = desk.hosts if desk.named else list(map(str, desk.config.boxes)) or desk.hosts
    return None if run or (len(names) == 1 and not watch) else names


def rounds(boxes: list[Asked], deadline: float, every: float) -> Iterator[list[Seen]]:
    """For ever, until Ctrl-C; a round that took longer than `every` is followed at once."""
    while True:
        began = time.monotonic()
        yield look(boxes, deadline)
        time.sleep(max(0.0, began + every - time.monotonic()))


def box_to_ask(desk: Desk, name: str) -> Asked:
    box = desk.box(name)
    config = str(beside_config(desk.config.ssh_config)) if desk.config.ssh_config else ""
    request = json.dumps({"folders": folders_of(box)}).encode() + b"\n"
    return asked(name, box.host, box.user, box.port, config, request)


def look(
    boxes: list[Asked], deadline: float, heard: Callable[[], None] = lambda: None
) -> list[Seen]:
    """One round, in the order of `boxes`; `heard` is told of each reply. Those that were silent the
    last time are asked last, so that they keep nobody waiting."""
    order = sorted(boxes, key=lambda each: last_copy(each.name, SILENT) is not None)
    seen = {}
    for reply in ask_all(order, deadline):
        seen[reply.name] = remembered(reply)
        heard()
    return [seen[each.name] for each in boxes]


def remembered(reply: Reply) -> Seen:
    """The answer, kept for the next time; or the last one kept."""
    if reply.answer is not None:
        keep_copy(reply.name, COPY, dict(reply.answer))
        copy_path(reply.name, SILENT).unlink(missing_ok=True)
        return Seen(reply.name, reply.answer, time.time())
    assert reply.fault is not None
    why = reply.fault.message.removeprefix(f"{reply.name}: ")
    keep_copy(reply.name, SILENT, {"why": why})
    copy = last_copy(reply.name, COPY)
    return Seen(reply.name, copy[1], copy[0], why) if copy else Seen(reply.name, None, 0.0, why)


def rows_of(desk: Desk, seen: list[Seen]) -> list[tuple[str, ...]]:
    now = time.time()
    return [row(each, now, desk.box(each.name).currency or desk.config.currency) for each in seen]


def say_faults(desk: Desk, seen: list[Seen]) -> None:
    silent = [each.name for each in seen if each.fault]
    if silent:
        desk.show.warn(f"{len(silent)} of {len(seen)} boxes did not answer: {', '.join(silent)}")


def as_json(seen: Seen) -> dict[str, Any]:
    """In the form that `fab status` has for one box, only that `runs` holds those that are alive
    or wait, and the newest; where nothing is known of a box, no more than why."""
    head = {"box": seen.name, "answered": not seen.fault, "fault": seen.fault}
    return {**head, "at": seen.at, **seen.found} if seen.found else {**head, "at": None}
