"""One stop of the box as the keeper carries it out: a step a poll, called off by a sign of life."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from . import idle
from .idle import Decision, spell
from .life import uptime
from .starts import allow_starts, forbid_starts
from .stopping_box import (
    PAUSES,
    VERIFY_SECONDS,
    live_ids,
    look_at_checkpoints,
    stop_runs,
    try_to_stop,
)

if TYPE_CHECKING:
    from .keeper import Keeper

# The beginnings of these names tell the runs' keeper (tending.py) not to resume before a reboot.
BY = {
    "idle": "idle",
    "unknown": "idle",
    "lifetime": "the shutdown at the end of its lifetime",
    "cost": "the money cap",
}
STARTS_FORBIDDEN = 3600.0


class Stopping:
    """`prepared`: runs are down. The point of no return is the first stop command."""

    def __init__(self, keeper: Keeper, decision: Decision) -> None:
        self.keeper, self.cause = keeper, decision.cause
        self.prepared = False
        self.tries = 0
        self.accepted = False
        self.not_before = 0.0
        self.last_words = ""
        self.stop: dict[str, Any] = keeper.armed["stop"]

    def step(self, decision: Decision) -> None:
        if not self.prepared:
            self.prepare(decision)
        elif time.monotonic() >= self.not_before:
            self.check_and_try(decision)

    def prepare(self, decision: Decision) -> None:
        """No new run starts, living ones get SIGTERM and their grace, checkpoints are looked at;
        then one more look at the box, unless a cap is the reason."""
        keeper, then = self.keeper, "stopped" if self.cause == "cost" else "interrupted"
        forbid_starts(f"the box is being stopped: {decision.reason}", STARTS_FORBIDDEN)
        ids = keeper.look.runs.stalled if keeper.armed.get("shared") else live_ids(keeper.places)
        said = stop_runs(keeper.places, ids, BY[self.cause], then, float(keeper.armed["grace"]))
        said += look_at_checkpoints(keeper.places, ids) if ids else []
        self.prepared = True
        if keeper.armed.get("shared"):
            self.free(ids, said, decision)
            return
        if self.cause in ("idle", "unknown"):
            sample = keeper.look.take(keeper.epoch)
            if sample.verdict == idle.ACTIVE:
                keeper.samples.append(sample)  # the next poll calls the stop off
                self.not_before = time.monotonic() + keeper.rule.poll
                return
        lines = [decision.reason, *said, self.stop["effect"]]
        keeper.tell(f"{keeper.box()} is being stopped now", "\n".join(lines), decision)
        keeper.outbox.wait(2.0)
        self.check_and_try(decision)

    def free(self, ids: list[str], said: list[str], decision: Decision) -> None:
        """A shared server is never switched off: its stalled runs of ours are, and that is all."""
        allow_starts()
        self.not_before = float("inf")
        if ids:
            text = "\n".join([decision.reason, *said])
            self.keeper.tell(f"{self.keeper.box()}: our stalled runs were stopped", text, decision)

    def check_and_try(self, decision: Decision) -> None:
        """The box still lives: so the try before has failed. Say it and try again."""
        if self.accepted:
            self.failed(f"{self.last_words}, but the box is still on", decision)
            self.accepted = False
            return
        if self.stop["how"] != "inside":
            self.wait_for_laptop(decision)
            return
        self.tries += 1
        self.keeper.quietly("ledger", lambda: self.keeper.ledger.save(uptime(), True))
        tried = try_to_stop(self.stop)
        self.accepted, self.last_words = tried
        if tried.accepted:
            self.not_before = time.monotonic() + float(self.stop.get("verify", VERIFY_SECONDS))
            self.keeper.journal.say(f"stop, try {self.tries}: {tried.text}")
        else:
            self.failed(tried.text, decision)

    def failed(self, why: str, decision: Decision) -> None:
        pauses = self.stop.get("pauses") or PAUSES
        pause = float(pauses[min(self.tries, len(pauses)) - 1])
        self.not_before = time.monotonic() + pause
        title = f"{self.keeper.box()} could NOT be stopped (try {self.tries})"
        text = f"{why}\nIt goes on costing money. Next try in {spell(pause)}."
        self.keeper.tell(title, text, decision)

    def wait_for_laptop(self, decision: Decision) -> None:
        """No way to stop it from inside: the laptop's `fab watch` does it, or a person."""
        pauses = self.stop.get("pauses") or PAUSES
        self.tries += 1
        self.not_before = time.monotonic() + float(pauses[min(self.tries, len(pauses)) - 1])
        who = (
            "fab watch on a laptop stops it" if self.stop["how"] == "laptop" else "Stop it yourself"
        )
        title = f"{self.keeper.box()} is ready to be stopped"
        self.keeper.tell(title, f"{decision.reason}\n{who}: {self.stop['effect']}", decision)

    def call_off(self, decision: Decision) -> None:
        allow_starts()
        if not self.keeper.armed.get("shared"):
            self.keeper.tell(
                f"{self.keeper.box()}: the stop is called off", decision.reason, decision
            )

    def status(self) -> dict[str, Any]:
        waiting = self.prepared and self.stop["how"] == "laptop"
        return {
            "tries": self.tries,
            "accepted": self.accepted,
            "last": self.last_words,
            "for_laptop": waiting,
        }
