"""Random days of a rented box: what really happens, what the sensors say, and what each rule makes of it.

The truth is drawn first (runs, people, foreign jobs); sensor faults, dead keepers, reboots,
suspends, clock jumps and changed rules are laid over it. The judge knows the truth and the rule
and shares no code with `decide`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from deploy.onbox.idle import (
    ABSENT,
    ACTIVE,
    GAP,
    IDLE,
    STOP,
    UNKNOWN,
    Moment,
    Rule,
    Sample,
    Signal,
    decide,
    worth_keeping,
)

DAY = 86400.0
PRICE = 2.0  # money an hour
NOTHING = Signal(IDLE)


class Span(NamedTuple):
    start: float
    end: float

    def holds(self, at: float) -> bool:
        return self.start <= at < self.end


@dataclass
class Day:
    """Spans in seconds since midnight; `begins` are the moments at which a new count begins."""

    rule: Rule
    runs: list[Span] = field(default_factory=list)  # our runs, alive
    bursts: list[Span] = field(default_factory=list)  # GPU in use, inside runs and foreign jobs
    foreign: list[Span] = field(default_factory=list)  # somebody's own program on GPU and CPU
    typing: list[Span] = field(default_factory=list)
    uploads: list[Span] = field(default_factory=list)
    gpu_faults: list[Span] = field(default_factory=list)  # the driver errs or hangs
    blackouts: list[Span] = field(default_factory=list)  # no keeper: killed, frozen, suspended
    hiccups: float = 0.0  # chance that a look at the GPU fails by itself
    reboots: list[float] = field(default_factory=list)
    jumps: list[tuple[float, float]] = field(default_factory=list)  # moment, seconds
    changes: list[tuple[float, Rule]] = field(default_factory=list)
    gpu: bool = True

    def works(self, at: float) -> bool:
        """Anything that a person would call work."""
        kinds = (self.runs, self.foreign, self.typing, self.uploads)
        return any(span.holds(at) for spans in kinds for span in spans)

    def last_work(self, at: float) -> float:
        """The last moment up to `at` at which there was work."""
        kinds = (self.runs, self.foreign, self.typing, self.uploads)
        ends = [min(s.end, at) for spans in kinds for s in spans if s.start <= at]
        return max(ends, default=0.0)


def draw_day(seed: int) -> Day:
    """One day, the same for the same seed."""
    dice = random.Random(seed)
    poll = dice.choice((30.0, 60.0, 60.0, 120.0))
    stop_after = dice.choice((900.0, 1800.0, 1800.0, 3600.0))
    rule = Rule(
        remind_after=stop_after / 3,
        stop_after=stop_after,
        max_unknown=dice.choice((2, 4, 6)) * 3600.0,
        max_hours=dice.choice((None, None, None, 4.0, 10.0)),
        max_cost=dice.choice((None, None, None, 6.0, 15.0)),
        price_per_hour=PRICE,
        poll=poll,
    )
    day = Day(rule, gpu=dice.random() < 0.85)
    work_of(day, dice)
    trouble_of(day, dice)
    day.bursts += day.foreign
    for span in day.runs:
        add_bursts(day, span, dice)
    return day


def work_of(day: Day, dice: random.Random) -> None:
    """A day of a few stretches of work with pauses; nothing at all on one in twenty."""
    at = dice.uniform(0, 2) * 3600
    for _ in range(dice.choice((0, 1, 1, 2, 2, 3, 4, 5)) if dice.random() > 0.05 else 0):
        kind = dice.choice(("run", "run", "run", "typing", "upload", "foreign"))
        end = min(DAY, at + dice.expovariate(1 / 5400.0) + 60)
        span = Span(at, end)
        if kind == "run":
            day.runs.append(span)
        elif kind == "foreign":
            day.foreign.append(span)
        elif kind == "typing":
            day.typing.append(span)
        else:
            day.uploads.append(span)
        at = end + dice.choice((0.0, dice.expovariate(1 / 900.0), dice.expovariate(1 / 5400.0)))


def add_bursts(day: Day, span: Span, dice: random.Random) -> None:
    """A run's GPU is busy and silent by turns (input, evaluation); some never use it."""
    at, silent = span.start, dice.choice((10.0, 120.0, 1500.0, 1e9))
    while at < span.end:
        busy = min(span.end, at + dice.uniform(5, 900))
        day.bursts.append(Span(at, busy))
        at = busy + dice.uniform(0.5, 1.5) * silent


def trouble_of(day: Day, dice: random.Random) -> None:
    day.hiccups = dice.choice((0.0, 0.0, 0.02, 0.2))
    for _ in range(dice.choice((0, 0, 1, 1, 2))):
        at = dice.uniform(0, DAY)
        lasts = dice.expovariate(1 / dice.choice((600.0, 5400.0, 30_000.0, 90_000.0)))
        day.gpu_faults.append(Span(at, at + lasts))
    for _ in range(dice.choice((0, 0, 0, 1, 2))):
        at = dice.uniform(0, DAY)
        day.blackouts.append(Span(at, at + dice.expovariate(1 / 600.0)))
    day.reboots = [dice.uniform(0, DAY) for _ in range(dice.choice((0, 0, 0, 1)))]
    for _ in range(dice.choice((0, 0, 0, 1, 2))):
        jump = dice.choice((6, -6, 24, 40 * 8766, -0.01)) * 3600
        day.jumps.append((dice.uniform(0, DAY), jump))
    for _ in range(dice.choice((0, 0, 0, 0, 1))):
        limit = dice.choice((600.0, 2400.0))
        limit = max(limit, 5 * day.rule.poll)
        changed = day.rule._replace(stop_after=limit, remind_after=limit / 3)
        day.changes.append((dice.uniform(0, DAY), changed))
    if day.reboots:  # what worked is ended by it; what was to come still comes
        cut = day.reboots[0]
        for spans in (day.runs, day.foreign, day.typing, day.uploads):
            spans[:] = [Span(s.start, cut) if s.holds(cut) else s for s in spans]


@dataclass
class End:
    """How a day went under a rule."""

    hours: float = 0.0  # that the box was on
    stops: int = 0
    wrongly: int = 0  # stopped at work, or before the rule's time
    late: bool = False  # left idle longer than the rule and one poll
    over_cap: bool = False
    causes: list[str] = field(default_factory=list)


def live(day: Day, dice: random.Random) -> End:
    """The day under the keeper's rule. Whoever has work for a box that is off starts it again."""
    end, at = End(), 0.0
    box = Box(day)
    while at < DAY:
        began = at
        box.boot(at)
        at = box.stay_on(at, end, dice)
        end.hours += (min(at, DAY) - began) / 3600
        if at >= DAY or end.causes[-1] == "cost":
            break
        at = next_work(day, at)
    return end


def next_work(day: Day, at: float) -> float:
    kinds = (day.runs, day.foreign, day.typing, day.uploads)
    return min((s.start for spans in kinds for s in spans if s.start > at), default=DAY)


class Box:
    """One box through the day, with its keeper's memory. `excuses` are the moments from which the
    rule may count anew; `known` those at which the sensors answered again, from which only the
    proof of idleness begins anew."""

    def __init__(self, day: Day) -> None:
        self.day, self.rule, self.epoch = day, day.rule, "0"
        self.samples: list[Sample] = []
        self.wall = self.on_before = 0.0
        self.excuses: list[float] = []
        self.known: list[float] = []
        self.events = sorted(
            [(t, "boot", 0.0) for t in day.reboots]
            + [(t, "rule", 0.0) for t, _ in day.changes]
            + [(t, "jump", seconds) for t, seconds in day.jumps]
        )

    def boot(self, at: float) -> None:
        self.booted, self.samples, self.answered, self.dead = at, [], at, False
        self.before = at
        self.epoch += "b"
        self.excuses.append(at)

    def happen(self, at: float) -> None:
        while self.events and self.events[0][0] <= at:
            moment, kind, seconds = self.events.pop(0)
            self.excuses.append(at)
            if kind == "boot":
                self.on_before += at - self.booted
                self.boot(at)
            elif kind == "rule":
                self.rule, self.epoch = dict(self.day.changes)[moment], self.epoch + "r"
            else:
                self.wall += seconds

    def stay_on(self, at: float, end: End, dice: random.Random) -> float:
        """Until it is stopped, or until midnight; the moment of that."""
        day = self.day
        while at < DAY:
            self.happen(at)
            rule, spent = self.rule, (self.on_before + at - self.booted) / 3600 * PRICE
            end.late = end.late or is_late(day, rule, at, self.excuses, self.known)
            end.over_cap = end.over_cap or over_cap(day, rule, at, self.booted, spent)
            if any(span.holds(at) for span in day.blackouts):
                self.dead = True
                at += rule.poll
                continue
            if self.dead:  # a new process: it remembers nothing
                self.dead, self.samples, self.before = False, [], at
                self.excuses.append(at)
            left, cause = self.look(at, spent, dice)
            if cause:
                end.stops += 1
                end.causes.append(cause)
                end.wrongly += stopped_wrongly(day, rule, at, cause, self.excuses, self.known)
                self.on_before += at - self.booted
                return at
            at += max(0.2, min(rule.poll, left)) if left else rule.poll  # as the keeper sleeps
        return at

    def look(self, at: float, spent: float, dice: random.Random) -> tuple[float | None, str]:
        """One poll: seconds to a stop that is in sight, and the cause of one that is due."""
        signals = signals_of(self.day, self.before, at, dice)
        self.before = at
        if signals["gpu"].state != UNKNOWN or any(s.state == ACTIVE for s in signals.values()):
            if at - self.answered > GAP * self.rule.poll:
                self.known.append(at)
            self.answered = at
        self.samples.append(Sample(at, at + self.wall, self.epoch, signals))
        now = Moment(at, self.epoch, at - self.booted, spent)
        decision = decide(self.samples, self.rule, now)
        self.samples = worth_keeping(self.samples, self.rule, now)
        return decision.stops_in, decision.cause if decision.action == STOP else ""


def signals_of(day: Day, before: float, at: float, dice: random.Random) -> dict[str, Signal]:
    """What the sensors say at a look: each tells what was there at any moment since the last one."""

    def seen(spans: list[Span]) -> bool:
        return any(span.start <= at and span.end > before for span in spans)

    signals = {
        "runs": Signal(ACTIVE, "r") if seen(day.runs) else NOTHING,
        "work": Signal(ACTIVE, "u") if seen(day.uploads) else NOTHING,
        "people": Signal(ACTIVE, "t") if seen(day.typing) else NOTHING,
        "cpu": Signal(ACTIVE, "80 %") if seen(day.foreign) else NOTHING,
        "gpu": Signal(ABSENT),
    }
    if day.gpu:
        out = any(span.holds(at) for span in day.gpu_faults) or dice.random() < day.hiccups
        busy = Signal(ACTIVE, "90 %") if seen(day.bursts) else NOTHING
        signals["gpu"] = Signal(UNKNOWN, "NVML: Unknown Error") if out else busy
    return signals


def stopped_wrongly(
    day: Day, rule: Rule, at: float, cause: str, excuses: list[float], known: list[float]
) -> bool:
    """At work, or less than the rule's time after the last work or after a new count began."""
    if cause in ("lifetime", "cost"):
        return False
    if day.works(at):
        return True
    known = known if cause == "idle" else []
    quiet = at - max([day.last_work(at), *excuses, *known])
    limit = rule.stop_after if cause == "idle" else rule.max_unknown
    return quiet < limit - 1e-6


def is_late(day: Day, rule: Rule, at: float, excuses: list[float], known: list[float]) -> bool:
    """On and idle for longer than the rule and one poll, with nothing to excuse it.

    While a sensor is out, patience lasts for max_unknown; hiccups of the very last looks may put
    the stop off by GAP polls; while no keeper lives none can stop.
    """
    if day.works(at) or any(s.holds(at) for s in day.blackouts):
        return False
    dark = [s.end for s in day.blackouts if s.end <= at]
    quiet = at - max([day.last_work(at), *excuses, *known, *dark])
    slack = (GAP + 1) * rule.poll if day.gpu and day.hiccups else 0.0
    if quiet <= rule.stop_after + rule.poll + slack + 0.5:
        return False
    faults = [s.end for s in day.gpu_faults if s.start <= at] if day.gpu else []
    recent = bool(faults) and at - max(faults) <= rule.stop_after + (GAP + 1) * rule.poll + slack
    if not recent:
        return True
    since = at - max([day.last_work(at), *excuses, *dark])
    return since > rule.max_unknown + rule.stop_after + (GAP + 2) * rule.poll + slack


def over_cap(day: Day, rule: Rule, at: float, boot: float, spent: float) -> bool:
    """Beyond lifetime or money by more than one poll, while a keeper lives."""
    if any(s.holds(at) or 0 <= at - s.end <= 2 * rule.poll for s in day.blackouts):
        return False
    late = rule.max_hours is not None and at - boot > rule.max_hours * 3600 + rule.poll + 1e-6
    dear = rule.max_cost is not None and spent > rule.max_cost + PRICE * rule.poll / 3600 + 1e-9
    return late or dear


def live_gpu_only(day: Day) -> End:
    """The usual script: stop when the GPU has been below 5 % for `stop_after`; a driver that does
    not answer counts as busy, which is the kinder of the two usual mistakes."""
    end, at = End(), 0.0
    while at < DAY:
        began = since = at
        while at < DAY and at - since < day.rule.stop_after:
            fault = day.gpu and any(span.holds(at) for span in day.gpu_faults)
            busy = fault or day.gpu and any(span.holds(at) for span in day.bursts)
            at += day.rule.poll
            since = at if busy else since
        end.hours += (min(at, DAY) - began) / 3600
        if at < DAY:
            end.stops += 1
            end.wrongly += day.works(at)
            at = next_work(day, at)
    return end


class Total(NamedTuple):
    """Sums over many days."""

    days: int
    stops: int
    wrongly: int
    late: int
    over_cap: int
    hours: float
    gpu_only_stops: int
    gpu_only_wrongly: int
    gpu_only_hours: float
    bad_seeds: list[int]


def simulate(first: int, count: int) -> Total:
    """Days `first` to `first + count`, each the same whenever it is drawn."""
    ends, others, bad = [], [], []
    for seed in range(first, first + count):
        day = draw_day(seed)
        end = live(day, random.Random(seed + 1))
        ends.append(end)
        others.append(live_gpu_only(day))
        if end.wrongly or end.late or end.over_cap:
            bad.append(seed)
    return Total(
        count,
        sum(end.stops for end in ends),
        sum(end.wrongly for end in ends),
        sum(end.late for end in ends),
        sum(end.over_cap for end in ends),
        sum(end.hours for end in ends),
        sum(end.stops for end in others),
        sum(end.wrongly for end in others),
        sum(end.hours for end in others),
        bad,
    )
