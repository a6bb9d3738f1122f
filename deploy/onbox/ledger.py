"""The ledger: how long the box was on, idle and training, by hour, for every life of the box."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from .life import keeper_folder, life, uptime
from .publish import read_json, write_json

SAVE_EVERY = 60.0  # seconds of the account that a power cut may cost


class Ledger:
    """Seconds are those that the box was on by its own uptime, so a keeper that was away for a
    while leaves no hole; the hour that they fall in is the wall clock's (UTC)."""

    def __init__(self, price_per_hour: float | None) -> None:
        self.price = price_per_hour
        self.folder = os.path.join(keeper_folder(), "ledger")
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self.path = os.path.join(self.folder, life() + ".json")
        self.account = self._open()
        self._saved = 0.0
        self._others = sum(
            float(each["cost"]) for each in read_ledger(self.folder) if each["life"] != life()
        )

    def _open(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return read_json(self.path)
        new = {"schema": 1, "life": life(), "began": time.time() - uptime()}
        return {**new, "on": 0.0, "cost": 0.0, "hours": {}}

    def add(self, now: float, idle: bool, runs: list[str], wall: float) -> None:
        """Account for the time since the last call; `now` is the box's uptime in seconds."""
        seconds = max(0.0, now - self.account["on"])
        self.account["on"] += seconds
        hour = time.strftime("%Y-%m-%dT%H", time.gmtime(wall))
        row = self.account["hours"].setdefault(
            hour, {"on": 0.0, "idle": 0.0, "cost": 0.0, "runs": {}}
        )
        row["on"] += seconds
        row["idle"] += seconds if idle else 0.0
        cost = seconds / 3600 * (self.price or 0.0)
        row["cost"] += cost
        self.account["cost"] += cost
        for run in runs:
            row["runs"][run] = row["runs"].get(run, 0.0) + seconds

    def spent(self) -> float:
        """Money over all lives of the box, in its currency."""
        return self._others + float(self.account["cost"])

    def save(self, now: float, at_once: bool = False) -> None:
        """Write it now and then; OSError where the disk is full."""
        if at_once or now - self._saved >= SAVE_EVERY:
            write_json(self.path, self.account)
            self._saved = now


def read_ledger(folder: str) -> list[dict[str, Any]]:
    """The accounts of all lives, oldest first; a damaged one is left out."""
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".json"):
            with contextlib.suppress(OSError, ValueError):
                found.append(read_json(os.path.join(folder, name)))
    return sorted(found, key=lambda each: float(each["began"]))


def cost(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Answer: {lives: [{life, began, on, cost, hours}], now: wall clock}."""
    lives = read_ledger(os.path.join(keeper_folder(), "ledger"))
    return {"lives": lives, "life": life(), "now": time.time()}
