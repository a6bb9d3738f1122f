"""`fab stop` ends a run, with its checkpoint saved; `fab rm` deletes one that has ended."""

from __future__ import annotations

from typing import Any

from deploy.plan.quantities import parse_duration, show_size
from deploy.plan.run import state_line
from deploy.verbs.desk import Desk


def stop(desk: Desk, run: str = "", now: bool = False, grace: str = "") -> list[dict[str, Any]]:
    results = []
    seconds = 0.0 if now else parse_grace(grace)
    for name in desk.hosts:
        if desk.dry_run:
            desk.show.say(f"stop {run or 'the newest run'} on {name}")
            continue
        with desk.open(name) as box:
            answer = box.call("stop", run=run, grace=seconds)
        desk.show.done(f"{answer['id']}: {state_line(answer['state'])}")
        results.append({"box": name, **answer})
    return results


def parse_grace(text: str) -> float | None:
    """Seconds between SIGTERM and SIGKILL; None for the run's own."""
    from deploy.errors import UsageError

    try:
        return parse_duration(text) if text else None
    except ValueError as no:
        raise UsageError(f"--grace: {no}", "") from no


def remove(desk: Desk, run: str) -> list[dict[str, Any]]:
    from deploy.errors import UsageError

    if not run:
        raise UsageError("rm: name the run", "fab status lists them")
    results = []
    for name in desk.hosts:
        if desk.dry_run:
            desk.show.say(f"remove {run} on {name}")
            continue
        with desk.open(name) as box:
            answer = box.call("rm", run=run)
        desk.show.done(f"{answer['id']} removed, {show_size(answer['freed'])} freed")
        results.append({"box": name, **answer})
    return results
