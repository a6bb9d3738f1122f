"""`fab doctor`: is this box ready, and if not, what exactly is to be done."""

from __future__ import annotations

import time
from typing import Any

from deploy.effects.agent import Agent
from deploy.errors import KitError, error_named
from deploy.plan.check import Check, worst
from deploy.plan.doctor import Way, checks
from deploy.verbs.desk import Desk, Outcome

MARKS = {"ok": "✓", "note": "·", "unknown": "?", "warn": "!", "bad": "✗"}
GPU_IMAGE = "gpubox/gpu:latest"


def doctor(desk: Desk) -> Outcome:
    """One connection to each box; the exit code is that of the worst thing found (warnings: 0)."""
    results, code = [], 0
    for name in desk.hosts:
        found = examine(desk, name)
        desk.show.table(["", name, "", "what to do"], [row(check) for check in found])
        bad = worst(found)
        if bad and bad.verdict == "bad":
            code = max(code, error_named(bad.kind).exit_code)
        verdict = bad.verdict if bad else "ok"
        results.append(
            {"box": name, "verdict": verdict, "checks": [check._asdict() for check in found]}
        )
    return Outcome(results, code)


def examine(desk: Desk, name: str) -> list[Check]:
    """The checks of one box; a box that can't be reached is one bad check with its remedy."""
    start = time.monotonic()
    try:
        with desk.open(name) as box:
            way = way_to(name, box, time.monotonic() - start)
            images = [desk.config.run.image or GPU_IMAGE]
            facts = box.call("doctor", repeatable=True, images=images)
    except KitError as fault:
        return [Check("SSH", fault.message, "bad", fault.hint, type(fault).__name__)]
    return checks(facts, way, desk.box(name))


def way_to(name: str, box: Agent, seconds: float) -> Way:
    """What a login prints by itself, and how far apart the two clocks are."""
    before = time.time()
    printed = box.link.run("exec /bin/sh -c 'echo; date +%s'").stdout.rstrip()
    noise, _, stamp = printed.rpartition(b"\n")
    middle = (before + time.time()) / 2
    offset = float(stamp) - middle if stamp.isdigit() else 0.0
    return Way(
        name=name, seconds=seconds, noise=noise.strip(), clock_offset=offset, **box.link.describe()
    )


def row(check: Check) -> tuple[Any, ...]:
    return MARKS[check.verdict], check.name, check.value, check.remedy
