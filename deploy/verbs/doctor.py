"""`fab doctor`: is this box ready, and if not, what exactly is to be done."""

from __future__ import annotations

import time

from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink
from deploy.effects.program import own_packages
from deploy.errors import KitError, error_named
from deploy.plan import doctor_stop
from deploy.plan.check import Check, worst
from deploy.plan.config import Box
from deploy.plan.deploy import IMAGES
from deploy.plan.doctor import Way, checks
from deploy.plan.providers import choose, questions
from deploy.verbs.desk import Desk, Outcome
from deploy.verbs.idle import ssh_host

MARKS = {"ok": "✓", "note": "·", "unknown": "?", "warn": "!", "bad": "✗"}


def doctor(desk: Desk) -> Outcome:
    """One connection to each box; the exit code is that of the worst thing found (warnings: 0)."""
    results, code = [], 0
    for name in desk.hosts:
        found = examine(desk, name)
        desk.show.table(["", name, ""], [row for check in found for row in rows_of(check)])
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
            images = [desk.config.run.image or IMAGES["gpu"]]
            facts = box.call("doctor", repeatable=True, images=images)
            money = about_money(box, desk.box(name), name)
    except KitError as fault:
        return [Check("SSH", fault.message, "bad", fault.hint, type(fault).__name__)]
    return checks(facts, way, desk.box(name)) + about_packages(desk) + money


def about_packages(desk: Desk) -> list[Check]:
    """The user's own packages, which go into the image; no row without any."""
    path = desk.config.run.requirements
    if not path:
        return []
    try:
        lines = [line for line in own_packages(path).splitlines() if line.split("#")[0].strip()]
    except KitError as no:
        return [Check("packages", no.message, "bad", no.hint, type(no).__name__)]
    said = f"{len(lines)} of your own from {path}, on top of the image's"
    if desk.config.run.image:
        return [Check("packages", f"{path} does not go into {desk.config.run.image}", "warn")]
    return [Check("packages", said)]


def about_money(box: Agent, settings: Box, name: str) -> list[Check]:
    """Whose box it is, what a stop does, whether the keeper is armed; nothing on this machine."""
    if isinstance(box.link, LocalLink):
        return []
    marks = box.call("marks", repeatable=True, **questions())
    choice = choose(settings.provider, marks, ssh_host(box, settings, name))
    idle = box.call("idle", repeatable=True)
    return doctor_stop.checks(idle, marks, choice, settings, name, time.time())


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


def rows_of(check: Check) -> list[tuple[str, str, str]]:
    """The check, and under it what to do."""
    remedy = [("", "", f"→ {check.remedy}")] if check.remedy else []
    return [(MARKS[check.verdict], check.name, check.value), *remedy]
