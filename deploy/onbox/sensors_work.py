"""Sensors of our own work: runs that make steps, leases of uploads and builds, a hold by the user."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from . import runs
from .activity import last_end, read_leases
from .hold import hold_left, read_hold
from .idle import ABSENT, ACTIVE, IDLE, UNKNOWN, Signal, spell
from .locks import DEAD_AFTER
from .places import Places
from .steps import boot_mark
from .tending import resume_verdict


class Beats:
    """Remembers when a sign of life last changed, by our own clock: nobody's wall clock matters."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Any, float]] = {}

    def age(self, key: str, sign: Any, at: float) -> float:
        """Seconds since `sign` was another one; 0 for a new one."""
        known = self._seen.get(key)
        if known is None or known[0] != sign:
            self._seen[key] = (sign, at)
            return 0.0
        return at - known[1]

    def forget_all_but(self, keys: set[str]) -> None:
        for key in set(self._seen) - keys:
            del self._seen[key]


class Runs:
    """Runs and the queue. One whose heartbeat stands still longer than `stalled_after` is said,
    and no longer counts as work."""

    def __init__(self, places: Places, stalled_after: float) -> None:
        self.places = places
        self.stalled_after = stalled_after
        self.live: list[dict[str, Any]] = []  # the records of the last look, for who wants them
        self.stalled: list[str] = []
        self._beats = Beats()
        self._looked = False
        self._ended: dict[str, int] = {}  # run id → mtime of a state.json that says it has ended

    def read(self, at: float) -> Signal:
        if not os.path.isdir(self.places.runs):
            self.live, self.stalled = [], []
            return Signal(UNKNOWN, f"{self.places.runs} is not there")
        ended = set(self._ended)
        self.live = [found for each in runs.run_ids(self.places) for found in self._record(each)]
        just_ended = [each for each in self._ended if each not in ended] if self._looked else []
        self._looked = True
        ages = {each["id"]: self._beats.age(each["id"], signs(each), at) for each in self.live}
        self._beats.forget_all_but(set(ages))
        self.stalled = [each for each, age in ages.items() if age > self.stalled_after]
        working = [each for each in self.live if each["id"] not in self.stalled]
        if working:
            return Signal(ACTIVE, ", ".join(f"{r['id']} {r['state']['state']}" for r in working))
        if just_ended:
            return Signal(ACTIVE, f"{', '.join(just_ended)} ended just now")
        if self.stalled:
            worst = max(ages.values())
            return Signal(IDLE, f"stalled: {', '.join(self.stalled)}: no heartbeat, {spell(worst)}")
        return Signal(IDLE, "none")

    def untended(self) -> bool:
        """True where a run waits for its turn, for its next try, or has lost its supervisor."""
        return any(not each["supervised"] for each in self.live)

    def _record(self, run_id: str) -> list[dict[str, Any]]:
        """A run of this box that is alive, waits, or will be tried again; what has ended for good
        is not read again until its state.json changes."""
        path = os.path.join(self.places.runs, run_id, "state.json")
        with contextlib.suppress(FileNotFoundError):
            changed = os.stat(path).st_mtime_ns
            if self._ended.get(run_id) == changed:
                return []
            found = runs.record(self.places, run_id)
            state = found["state"]
            if found["mine"] and (state["state"] not in runs.ENDED or will_be_tried(state)):
                return [found]
            if state["state"] != "interrupted":
                self._ended[run_id] = changed
        return []


def will_be_tried(state: dict[str, Any]) -> bool:
    """An interrupted run that is due, or waits for its next try."""
    if state["state"] != "interrupted":
        return False
    due, why = resume_verdict(state, time.time(), boot_mark())
    return due or why.startswith("try ")


def signs(record: dict[str, Any]) -> tuple[Any, ...]:
    """What moves while a run lives: its state, the workload's heartbeat, its logs. (The mtime of
    state.json is the supervisor's heartbeat: it beats beside a trainer that hangs, too.)"""
    folder = record["folder"]
    paths = [os.path.join(folder, "output", "progress.json")]
    with contextlib.suppress(OSError):
        logs = os.path.join(folder, "logs")
        paths += [os.path.join(logs, name) for name in sorted(os.listdir(logs))]
    found: list[int] = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append(os.stat(path).st_mtime_ns)
    return (record["state"].get("since"), *found)


class Leases:
    """Uploads, staging, fetches, builds. A lease whose heartbeat stands still is no longer work."""

    def __init__(self) -> None:
        self._beats = Beats()
        self._last_end: int | None = None

    def read(self, at: float) -> Signal:
        leases = read_leases()
        before, self._last_end = self._last_end, last_end()
        ages = {}
        for lease in leases:
            key = "{}-{}".format(lease["why"], lease["pid"])
            ages[key] = self._beats.age(key, lease["beat"], at)
        self._beats.forget_all_but(set(ages))
        working = [key for key, age in ages.items() if age <= DEAD_AFTER]
        if working:
            return Signal(ACTIVE, ", ".join(working))
        if before is not None and before != self._last_end:
            return Signal(ACTIVE, "some work ended just now")
        return Signal(IDLE, "frozen: " + ", ".join(ages) if ages else "none")


class Hold:
    """`fab hold`: the user's word that the box is wanted, for a while."""

    def read(self, at: float) -> Signal:
        hold = read_hold()
        left = hold_left(hold, at, time.time()) if hold else 0.0
        if not hold or left <= 0:
            return Signal(ABSENT)
        return Signal(ACTIVE, "{} ({} left)".format(hold["why"] or "held", spell(left)))
