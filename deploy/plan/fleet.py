"""PURE: many boxes as one table: what each said, or last said and when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from deploy.plan.keeper import status_line
from deploy.plan.quantities import show_duration

ALIVE, WAITING = ("staging", "running", "stopping"), ("created", "queued")
HEADS = ("box", "state", "GPU", "run", "step", "right", "left", "auto-stop", "today")


class Seen(NamedTuple):
    """A box's overview, when it said that (the laptop's clock), and why it is not a new one."""

    name: str
    found: Mapping[str, Any] | None
    at: float
    fault: str = ""


def row(seen: Seen, now: float, currency: str) -> tuple[str, ...]:
    """One line of the table; a box that did not answer shows its last words and their age."""
    if seen.found is None:
        return (seen.name, seen.fault, *[""] * (len(HEADS) - 2))
    run, state = shown(seen.found) or {}, state_of(seen.found)
    if seen.fault:
        state = f"{seen.fault}; {show_duration(now - seen.at)} ago: {state}"
    return (
        seen.name,
        state,
        gpu(seen.found),
        short_id(str(run.get("id") or "")),
        step(run),
        right(run),
        left(run),
        auto_stop(seen.found, now),
        money(seen.found, now, currency),
    )


def shown(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The run that a line tells of: the newest that is alive, else that waits, else of all."""
    whole = [each for each in found["runs"] if not each.get("damaged")]
    for states in (ALIVE, WAITING):
        if mine := [each for each in whole if each["mine"] and each["state"]["state"] in states]:
            return dict(mine[-1])
    return dict(whole[-1]) if whole else None


def state_of(found: Mapping[str, Any]) -> str:
    run = shown(found)
    if not run:
        return "no run yet"
    state = str(run["state"]["state"])
    more = found["alive"] - 1 if found["alive"] > 1 else 0
    waiting = f", {found['waiting']} waiting" if found["waiting"] else ""
    return state + (f" (+{more})" if more else "") + waiting


def gpu(found: Mapping[str, Any]) -> str:
    """What the keeper's GPU sensor last saw; "?" where nothing looks."""
    status = (found.get("keeper") or {}).get("status") or {}
    signal = (status.get("signals") or {}).get("gpu")
    if not signal:
        return "?"
    return "none" if signal[0] == "absent" else str(signal[1])


def short_id(run: str) -> str:
    """`cnn-3f9a` of `20261130-0930-cnn-3f9a`."""
    return run[14:] if len(run) > 14 else run


def step(run: Mapping[str, Any]) -> str:
    progress = run.get("progress") or {}
    if progress.get("step") is None:
        return ""
    return f"{progress['step']:,}" + (f" / {progress['steps']:,}" if progress.get("steps") else "")


def right(run: Mapping[str, Any]) -> str:
    """The validation accuracy where there is one, else that of the training batches."""
    for key in ("validation_accuracy", "accuracy"):
        value = (run.get("progress") or {}).get(key)
        if isinstance(value, (int, float)):
            return f"{100 * value:.1f} %"
    return ""


def left(run: Mapping[str, Any]) -> str:
    running = (run.get("state") or {}).get("state") == "running"
    seconds = (run.get("progress") or {}).get("eta_seconds")
    return show_duration(seconds) if running and isinstance(seconds, (int, float)) else ""


def auto_stop(found: Mapping[str, Any], now: float) -> str:
    line = status_line(found["keeper"], now) if found.get("keeper") else "NOT armed"
    return line.removeprefix("auto-stop: ").removeprefix("armed, ")


def money(found: Mapping[str, Any], now: float, currency: str) -> str:
    """Money, else hours, since midnight where the reader is."""
    midnight = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    since = midnight.astimezone(timezone.utc).strftime("%Y-%m-%dT%H")
    rows = [each for hour, each in (found.get("hours") or {}).items() if hour >= since]
    cost, on = sum(each[1] for each in rows), sum(each[0] for each in rows)
    if cost:
        return f"{cost:.2f} {currency}"
    return show_duration(on) if on else ""
