"""PURE: decides from looks at the box whether it is kept, reminded about or stopped, and says why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Mapping, NamedTuple, Sequence

ACTIVE, IDLE, UNKNOWN, ABSENT = "active", "idle", "unknown", "absent"
KEEP, REMIND, STOP = "keep", "remind", "stop"
FIRST, HALF, LAST = 1, 2, 3  # levels of a reminder

GAP = 3.5  # polls: looks further apart do not follow one another; two in a row may be missing
LEAST = 3  # looks: fewer prove nothing
JUMP = 5.0  # seconds by which wall and monotonic clock may differ between two looks
LAST_CALL = 120.0  # seconds before a stop


class Signal(NamedTuple):
    """What one sensor says. `absent` (no GPU on the bus, no Jupyter) is not `unknown`."""

    state: str
    detail: str = ""


@dataclass(frozen=True)
class Sample:
    """One look at the box. `epoch` changes with the boot and with the rule."""

    at: float  # seconds, monotonic
    wall: float  # seconds since 1970
    epoch: str
    signals: Mapping[str, Signal]

    @cached_property  # each decision asks for it of every look that it goes by
    def verdict(self) -> str:
        """Active if any signal is; else unknown if any is; else idle."""
        found = ABSENT
        for state, _ in self.signals.values():
            if state == ACTIVE:
                return ACTIVE
            if state == UNKNOWN or found == ABSENT:
                found = state
        return UNKNOWN if found == ABSENT else found


class Rule(NamedTuple):
    """The rule as the keeper uses it; all times in seconds, money in the box's currency."""

    enabled: bool = True
    remind_after: float = 600.0
    stop_after: float = 1800.0
    max_unknown: float = 6 * 3600.0
    max_hours: float | None = None
    max_cost: float | None = None
    price_per_hour: float | None = None
    poll: float = 15.0


class Moment(NamedTuple):
    """Now: the monotonic clock, how long the box has been on, what it has cost since the cap."""

    at: float
    epoch: str
    uptime: float = 0.0
    spent: float = 0.0


class Decision(NamedTuple):
    action: str  # keep, remind or stop
    cause: str  # active, idle, unknown, few, off, lifetime or cost
    reason: str  # one line for people
    level: int = 0  # of a reminder
    idle_for: float = 0.0  # seconds without a sign of life
    stops_in: float | None = None  # seconds; None: no stop in sight


def decide(samples: Sequence[Sample], rule: Rule, now: Moment) -> Decision:
    """What is to be done now. The caps hold whatever the sensors say; idleness has to be proven.

    A look with an unknown sensor counts as no look: it neither proves idleness nor breaks it,
    until looks are missing for longer than GAP polls. A change of the rule, a reboot, a clock
    jump and a suspend begin a new count.
    """
    looks = _unbroken(samples, rule, now)
    still = _since_active(looks)
    decisions = [_idleness(looks, still, rule, now)]
    decisions += [_lifetime(rule, now)] if rule.max_hours is not None else []
    decisions += [_cost(rule, now)] if rule.max_cost is not None and rule.price_per_hour else []
    decisions.sort(key=_urgency)
    return decisions[0]._replace(idle_for=_quiet_for(looks, still, now))


def _urgency(decision: Decision) -> tuple[float, float]:
    if decision.action == KEEP:
        return 2.0, 0.0  # of those that keep, idleness has the word: it stands first
    return float(decision.action == REMIND), decision.stops_in or 0.0


def _lifetime(rule: Rule, now: Moment) -> Decision:
    assert rule.max_hours is not None
    left = rule.max_hours * 3600 - now.uptime
    reason = f"on for {spell(now.uptime)}, lifetime {spell(rule.max_hours * 3600)}"
    return _countdown("lifetime", reason, left, rule)


def _cost(rule: Rule, now: Moment) -> Decision:
    assert rule.max_cost is not None and rule.price_per_hour
    left = (rule.max_cost - now.spent) / rule.price_per_hour * 3600
    reason = f"{now.spent:.2f} spent of {rule.max_cost:.2f}"
    return _countdown("cost", reason, left, rule)


def _idleness(
    looks: Sequence[Sample], still: Sequence[Sample], rule: Rule, now: Moment
) -> Decision:
    if not rule.enabled:
        return Decision(KEEP, "off", "the idle rule is off")
    if not looks:
        return Decision(KEEP, "few", "no look at the box within the last polls yet")
    if looks[-1].verdict == ACTIVE:
        return Decision(KEEP, "active", told(looks[-1], ACTIVE))
    idle = _idle_looks(still, rule, now)
    if not idle:
        return _unknown(still, rule, _quiet_for(looks, still, now))
    return _proven(looks[-1], _last_sign(looks, still), idle, rule, now)


def _proven(
    newest: Sample, sign: Sample, idle: Sequence[Sample], rule: Rule, now: Moment
) -> Decision:
    """The sensors have answered: the count of `stop_after` runs."""
    follows = sign.verdict == ACTIVE and idle[0].at - sign.at <= GAP * rule.poll
    idle_for = now.at - (sign.at if follows else idle[0].at)
    left = rule.stop_after - idle_for
    why = told(idle[-1], IDLE)
    if len(idle) < LEAST:
        return Decision(KEEP, "few", f"only {len(idle)} look(s) so far: {why}", stops_in=left)
    if left <= 0 and newest.verdict == UNKNOWN:
        return Decision(KEEP, "few", f"idle, but just now unknown: {told(newest, UNKNOWN)}")
    reason = f"idle {spell(idle_for)}, limit {spell(rule.stop_after)}: {why}"
    return _countdown("idle", reason, left, rule)


def _unknown(still: Sequence[Sample], rule: Rule, still_for: float) -> Decision:
    """A sensor does not answer: the longer count of `max_unknown` runs."""
    reason = f"unknown: {told(still[-1], UNKNOWN)}; no sign of life for {spell(still_for)}"
    if len(still) < LEAST:
        return Decision(KEEP, "few", reason)
    return _countdown("unknown", reason, rule.max_unknown - still_for, rule)


def _quiet_for(looks: Sequence[Sample], still: Sequence[Sample], now: Moment) -> float:
    """Seconds since the last sign of life that was seen, or since the count began."""
    return now.at - _last_sign(looks, still).at if still else 0.0


def _last_sign(looks: Sequence[Sample], still: Sequence[Sample]) -> Sample:
    """The last look that saw a sign of life, else the first. Every sensor tells what was there at
    any moment since the look before, so what follows this look was idle from its time on."""
    return looks[-len(still) - 1] if len(looks) > len(still) else looks[0]


def _countdown(cause: str, reason: str, left: float, rule: Rule) -> Decision:
    """Stop at 0; reminders when `remind_after` of the rule's time has passed, at half of what
    is left then, and a last call."""
    if left <= 0:
        return Decision(STOP, cause, reason, stops_in=0.0)
    lead = max(rule.stop_after - rule.remind_after, 0.0)
    if left > lead:
        return Decision(KEEP, cause, reason, stops_in=left)
    level = LAST if left <= min(LAST_CALL, lead / 4) else HALF if left <= lead / 2 else FIRST
    return Decision(REMIND, cause, reason, level, stops_in=left)


def told(sample: Sample, state: str) -> str:
    """`runs: bp-1 makes steps; gpu: 80 %`: what the signals of one state say."""
    parts = [f"{k}: {v.detail or v.state}" for k, v in sample.signals.items() if v.state == state]
    return "; ".join(parts) or "nothing to look at"


def _unbroken(samples: Sequence[Sample], rule: Rule, now: Moment) -> Sequence[Sample]:
    """The newest looks that follow one another without a gap, a jump or another epoch."""
    begin, farthest = len(samples), GAP * rule.poll
    at, wall = now.at, None
    for sample in reversed(samples):
        apart = at - sample.at
        if sample.epoch != now.epoch or not 0 <= apart <= farthest:
            break
        if wall is not None and abs((wall - sample.wall) - apart) > JUMP:
            break
        begin -= 1
        at, wall = sample.at, sample.wall
    return samples[begin:]


def _since_active(looks: Sequence[Sample]) -> Sequence[Sample]:
    begin = len(looks)
    for sample in reversed(looks):
        if sample.verdict == ACTIVE:
            break
        begin -= 1
    return looks[begin:]


def _idle_looks(still: Sequence[Sample], rule: Rule, now: Moment) -> list[Sample]:
    """The newest idle looks, none further than GAP polls from the next."""
    idle: list[Sample] = []
    later, farthest = now.at, GAP * rule.poll
    for sample in reversed(still):
        if later - sample.at > farthest:
            break
        if sample.verdict == IDLE:
            idle.append(sample)
            later = sample.at
    return idle[::-1]


def worth_keeping(samples: Sequence[Sample], rule: Rule, now: Moment) -> list[Sample]:
    """The looks that a later decision can still need: the last active one and what follows it."""
    looks = _unbroken(samples, rule, now)
    return list(looks[-(len(_since_active(looks)) + 1) :])


def spell(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 30 min`, `26 h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole < 600 and whole % 60 else "")
    hours, rest = divmod(whole // 60, 60)
    return f"{hours} h" + (f" {rest} min" if rest and hours < 24 else "")
