"""The keeper: looks, decides, reminds, stops the box; starts waiting runs and resumes broken ones."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any

from . import idle
from .armed import armed_mark, read_armed, read_channels, rule_of, write_armed
from .child import TookTooLong, in_child
from .idle import LAST, REMIND, STOP, Decision, Moment, Sample, decide, spell, worth_keeping
from .journal import Journal
from .keeper_status import write_status
from .ledger import Ledger
from .life import keeper_folder, life, uptime
from .look import Look
from .notify import Notice, Outbox
from .overview import write_overview
from .places import find_places
from .starts import allow_starts
from .stopping_task import Stopping
from .tending import tend

TEND_SECONDS = 60.0
CAPS = {"lifetime": "idle --max-hours MORE", "cost": "idle --max-cost MORE"}  # no hold helps
DISARMED = 3  # exit code that tells systemd, or the small supervisor, not to start us again


class Keeper:
    """One keeper's life. `tick` is one poll; it returns the seconds until the next."""

    def __init__(self, armed: dict[str, Any]) -> None:
        self.journal = Journal(os.path.join(keeper_folder(), "log"))
        self.outbox = Outbox(find_places(armed).home, self.journal.say)
        self.samples: list[Sample] = []
        self.told: tuple[str, int] = ("", 0)
        self.stop: Stopping | None = None
        self.take_over(armed)

    def take_over(self, armed: dict[str, Any]) -> None:
        """A new rule: the count begins again (its epoch is another one)."""
        self.armed, self.mark = armed, armed_mark()
        self.rule = rule_of(armed)
        self.places = find_places(armed)
        self.epoch = life() + json.dumps(armed, sort_keys=True)
        limits, shared = armed["limits"], bool(armed.get("shared"))
        self.look = Look(self.places, limits, shared, self.rule.poll)
        self.ledger = Ledger(self.rule.price_per_hour)
        self.stop = None
        allow_starts()
        self.journal.say("armed: {}".format(json.dumps(armed["rule"], sort_keys=True)))

    def tick(self) -> float:
        self.reread()
        sample = self.look.take(self.epoch)
        self.samples.append(sample)
        now = self.moment()
        self.account(sample)
        now = self.moment()
        decision = decide(self.samples, self.rule, now)
        self.samples = worth_keeping(self.samples, self.rule, now)
        self.act(decision, sample)
        self.outbox.reap()
        self.note(decision, sample)
        left = decision.stops_in if decision.stops_in and decision.stops_in > 0 else self.rule.poll
        return max(0.2, min(self.rule.poll, left))

    def moment(self) -> Moment:
        spent = self.ledger.spent() - float(self.armed.get("cost_base", 0.0))
        return Moment(time.monotonic(), self.epoch, uptime(), spent)

    def reread(self) -> None:
        """A replaced rule.json is taken over; a deleted one is written again, and said."""
        mark = armed_mark()
        if mark == self.mark:
            return
        if mark is None:
            if self.quietly("rule.json", lambda: write_armed(self.armed)):
                self.mark = armed_mark()
                self.tell("the keeper's rule was deleted", "It goes on with the one it had.")
            return
        armed = read_armed()
        if armed is not None and armed != self.armed:
            self.look.close()
            self.take_over(armed)
        self.mark = armed_mark()

    def account(self, sample: Sample) -> None:
        working = [each["id"] for each in self.look.runs.live]
        quiet = sample.verdict == idle.IDLE
        self.ledger.add(uptime(), quiet, working, sample.wall)
        self.quietly("ledger", lambda: self.ledger.save(uptime()))

    def act(self, decision: Decision, sample: Sample) -> None:
        if decision.action == STOP:
            if self.stop is None or self.stop.cause != decision.cause:
                self.stop = Stopping(self, decision)
            self.stop.step(decision)
            return
        if self.stop is not None:
            if decision.cause == "few":
                return  # a look that failed is no sign of life
            self.stop.call_off(decision)
            self.stop = None
        if decision.action == REMIND:
            self.remind(decision)
        elif self.told[1] and decision.cause != "few":
            self.told = ("", 0)
        self.tend()

    def tend(self) -> None:
        """Start what waits and resume what broke; in a child, as an engine may hang."""
        if not self.look.runs.untended():
            return
        try:
            for each in in_child(lambda: tend(self.places), TEND_SECONDS):
                self.journal.say("run {id}: started: {why}".format(**each))
            self.journal.forget("tend")
        except (TookTooLong, RuntimeError) as no:
            self.journal.once("tend", f"waiting runs can't be started: {no or 'the engine hangs'}")

    def remind(self, decision: Decision) -> None:
        """Each level once in a count."""
        if self.told[0] == decision.cause and decision.level <= self.told[1]:
            return
        self.told = (decision.cause, decision.level)
        left = spell(decision.stops_in or 0)
        title = "{} stops in {}{}".format(
            self.box(), left, ": last call" if decision.level == LAST else ""
        )
        what = "its runs are stopped" if self.armed.get("shared") else self.armed["stop"]["effect"]
        when = time.strftime("%H:%M UTC", time.gmtime(time.time() + (decision.stops_in or 0)))
        keeps = CAPS.get(decision.cause, "hold 2h")
        snooze = f"To keep it: fab {keeps} --host {self.box()}"
        since = time.strftime("%H:%M UTC", time.gmtime(time.time() - decision.idle_for))
        quiet = f"No sign of life since {since}\n" if decision.idle_for else ""
        text = f"{decision.reason}\n{quiet}At {when}: {what}\n{self.money()}{snooze}"
        self.tell(title, text, decision)

    def money(self) -> str:
        if not self.rule.price_per_hour:
            return ""
        return f"Cost so far: {self.ledger.spent():.2f} {self.armed.get('currency', '')}\n"

    def box(self) -> str:
        return str(self.armed.get("box", "box"))

    def tell(self, title: str, text: str, decision: Decision | None = None) -> None:
        """To terminals, channels and the journal."""
        self.journal.say(f"{title}: {text}".replace("\n", "; "))
        fields = decision._asdict() if decision else {}
        notice = Notice(f"gpubox: {title}", text, {"box": self.box(), **fields})
        self.outbox.send(read_channels(), notice)

    def note(self, decision: Decision, sample: Sample) -> None:
        self.quietly("status.json", lambda: write_status(self, decision, sample))
        self.quietly("overview.json", lambda: write_overview(self.places, self.look.runs.live))

    def quietly(self, what: str, write: Any) -> bool:
        """A full disk must not stop the keeper; it is said once."""
        try:
            write()
        except OSError as no:
            self.journal.once(what, f"{what} can't be written: {no.strerror}")
            return False
        self.journal.forget(what)
        return True


class Woken:
    """SIGHUP: look at once (the rule was changed). SIGTERM: end."""

    def __init__(self) -> None:
        self.ended = False
        self._reader, writer = os.pipe()
        for fd in (self._reader, writer):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGHUP, lambda *_: None)
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: Any) -> None:
        self.ended = True

    def sleep(self, seconds: float) -> None:
        if not self.ended and select.select([self._reader], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 512)


def keep() -> int:
    """`python3 onbox.pyz keeper`: until SIGTERM, or until it is disarmed. One a box."""
    os.umask(0o077)
    lock = os.open(os.path.join(keeper_folder(), "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.stderr.write("another keeper runs already\n")
        return DISARMED
    armed = read_armed()
    if armed is None:
        sys.stderr.write("not armed\n")
        return DISARMED
    woken, keeper = Woken(), Keeper(armed)
    while not woken.ended:
        if os.path.exists(os.path.join(keeper_folder(), "disarmed")):
            keeper.journal.say("disarmed")
            return DISARMED
        woken.sleep(keeper.tick())
    keeper.quietly("ledger", lambda: keeper.ledger.save(uptime(), at_once=True))
    keeper.journal.say("ended by SIGTERM")
    keeper.outbox.wait(1.0)
    keeper.look.close()
    return 0
