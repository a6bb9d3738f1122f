"""`fab stop` ends a run, with its checkpoint saved; `fab rm` deletes one that has ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deploy.plan.quantities import parse_duration, show_size
from deploy.plan.run import state_line
from deploy.verbs.desk import Desk


def stop(desk: Desk, run: str = "", now: bool = False, grace: str = "") -> list[dict[str, Any]]:
    """Stop a run on each box; of several workers all together, since none goes on alone."""
    seconds = 0.0 if now else parse_grace(grace)
    meant = runs_meant(desk, run)
    if desk.dry_run:
        for name, one in meant.items():
            desk.show.say(f"stop {one} on {name}")
        return []
    with ThreadPoolExecutor(len(meant)) as pool:
        stopping = [pool.submit(stop_one, desk, name, one, seconds) for name, one in meant.items()]
    results = [each.result() for each in stopping]
    for answer in results:
        desk.show.done(f"{answer['id']}: {state_line(answer['state'])}")
    return results


def stop_one(desk: Desk, name: str, run: str, seconds: float | None) -> dict[str, Any]:
    with desk.open(name) as box:
        return {"box": name, **box.call("stop", run=run, grace=seconds)}


def runs_meant(desk: Desk, run: str) -> dict[str, str]:
    """Box → run: those that were named, and the other workers of any of them."""
    meant: dict[str, str] = {}
    for name in desk.hosts:
        with desk.open(name) as box:
            found = box.call("status", run=run or "last")["runs"][0]
        meant[name] = found["id"]
        peers = ((found.get("run") or {}).get("worker") or {}).get("runs") or {}
        meant.update({box: each for box, each in peers.items() if box not in desk.hosts})
    return meant


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
