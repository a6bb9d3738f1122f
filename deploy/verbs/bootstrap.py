"""`fab bootstrap`: make a bare machine ready for runs; what is ready already is left alone."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink
from deploy.errors import BoxUnfit, StopFailed
from deploy.plan.bootstrap import Command, Step, plan, through
from deploy.verbs.desk import Desk, Outcome
from deploy.verbs.idle import arm_keeper, say_armed


def bootstrap(desk: Desk) -> Outcome:
    """For each box; exit code 20 where something is left to do by hand."""
    results = [make_ready(desk, name) for name in desk.hosts]
    left = any(result["by_hand"] for result in results) and not desk.dry_run
    return Outcome(results, BoxUnfit.exit_code if left else 0)


def make_ready(desk: Desk, name: str) -> dict[str, Any]:
    with desk.open(name) as box:
        facts = box.call("survey", repeatable=True)
        steps = plan(facts, name)
        show(desk, name, [*steps, *keeper_step(box)])
        if not desk.dry_run:
            with way_out(desk, box, facts, steps) as proxy:
                for step in steps:
                    apply(desk, box, step, proxy)
    done = [step.name for step in steps if step.commands]
    if desk.dry_run:
        return result(name, [], steps)
    # A new connection: a new group counts from then on.
    with desk.open(name) as box:
        steps = check_again(box, name) if done else steps
        armed = arm(desk, box, name)
    done += [step.name for step in armed if not step.by_hand]
    answer = result(name, done, [*steps, *armed])
    sum_up(desk, answer)
    return answer


def result(name: str, changed: list[str], steps: list[Step]) -> dict[str, Any]:
    by_hand = {step.name: step.by_hand for step in steps if step.by_hand}
    return {"box": name, "changed": changed, "by_hand": by_hand}


def keeper_step(box: Agent) -> list[Step]:
    """For the plan: is the keeper armed? This machine's own is its owner's matter."""
    if isinstance(box.link, LocalLink):
        return []
    armed = box.call("idle", repeatable=True)["armed"]
    return [Step("keeper", "it is armed" if armed else "it is armed with the rule of the config")]


def arm(desk: Desk, box: Agent, name: str) -> list[Step]:
    """Arm the keeper; a step where that changed something or is left to a person."""
    if isinstance(box.link, LocalLink):
        return []
    before = box.call("idle", repeatable=True)["armed"]
    try:
        say_armed(desk, name, arm_keeper(desk, box, desk.box(name)))
    except StopFailed as no:
        return [Step("keeper", no.message, by_hand=f"{no.message}: {no.hint}")]
    return [] if before else [Step("keeper", "armed")]


def show(desk: Desk, name: str, steps: list[Step]) -> None:
    """The whole plan before any of it is done, each command on a line of its own."""
    rows = []
    for step in steps:
        todo = "by hand" if step.by_hand else "do" if step.commands else "keep"
        rows.append((todo, step.name, step.why))
        rows += [("", "", f"→ {line}") for line in lines_of(step)]
    desk.show.table(["", name, ""], rows)


def lines_of(step: Step) -> list[str]:
    if step.by_hand:
        return [step.by_hand]
    return [shlex.join(command.argv) for command in step.commands]


@contextlib.contextmanager
def way_out(desk: Desk, box: Agent, facts: dict[str, Any], steps: list[Step]) -> Iterator[str]:
    """A proxy through this machine, where packages are needed and the box reaches none of its
    sources; "" where it has a network of its own."""
    silent = [url for url, why in facts["reach"]["apt"].items() if why]
    needed = any("apt-get" in command.argv for step in steps for command in step.commands)
    transport = getattr(box.link, "transport", None)
    if not silent or not needed or transport is None:
        yield ""
        return
    from deploy.effects.carry import carried

    desk.show.note(
        f"{box.link.name} has no way to {silent[0]}: its packages go through this machine"
    )
    with carried(transport, facts["hosts"]) as proxy:
        yield proxy


def apply(desk: Desk, box: Agent, step: Step, proxy: str) -> None:
    if not step.commands:
        return
    desk.show.step(f"{step.name}: {step.why}")
    with desk.show.progress(step.name, None, unit="steps") as bar:
        for command in step.commands:
            perform(box, through(command, proxy), lambda event: bar.at(0, detail=event.get("line")))
    desk.show.done(step.name)


def perform(box: Agent, command: Command, on_event: Any) -> None:
    """Never repeated by itself: nobody knows how far a command came when the link died."""
    box.call("perform", on_event, argv=list(command.argv), root=command.root, stdin=command.stdin)


def check_again(box: Agent, name: str) -> list[Step]:
    """Fresh facts: is anything left?"""
    steps = plan(box.call("survey", repeatable=True), name)
    left = [step for step in steps if step.commands]
    if left:
        raise BoxUnfit(
            f"{name}: {left[0].name} is still not right: {left[0].why}",
            f"fab doctor --host {name} says more",
        )
    return steps


def sum_up(desk: Desk, answer: dict[str, Any]) -> None:
    name, done, by_hand = answer["box"], answer["changed"], answer["by_hand"]
    for step, how in by_hand.items():
        desk.show.warn(f"{name}: {step}, by hand: {how}")
    changed = f"changed: {', '.join(done)}" if done else "nothing to change"
    desk.show.say(f"{name}: {changed}" + ("" if by_hand else "; ready"))
