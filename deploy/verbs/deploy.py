"""`fab deploy`: the whole way to a running container: look, arm, upload, image, stage, start."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from deploy.effects.agent import Agent, Question
from deploy.effects.link import LocalLink
from deploy.plan.config import Box, Name
from deploy.plan.deploy import IMAGES, Start, Way, choose_start, choose_way
from deploy.plan.quantities import show_duration
from deploy.verbs.bring import ensure_image
from deploy.verbs.desk import Desk
from deploy.verbs.idle import arm_keeper, rule_of, say_armed
from deploy.verbs.launch import conclude, plan_launch, submit, watched
from deploy.verbs.unlock import deploying, release_with_next
from deploy.verbs.upload import asked_for, upload_set


def deploy(
    desk: Desk,
    data: str = "",
    args: str = "",
    gpus: str = "",
    device: str = "",
    new: bool = False,
    follow: bool = False,
) -> list[dict[str, Any]]:
    """The same on each of the desk's boxes, one after the other."""
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            done = deploy_to(desk, name, box, data, args, gpus, device, new)
        results.append({"box": name, **done})
    if follow and not desk.dry_run:
        from deploy.verbs.logs import follow_to_the_end

        follow_to_the_end(desk, desk.hosts[-1], results[-1]["id"])
    return results


def deploy_to(
    desk: Desk, name: str, box: Agent, data: str, args: str, gpus: str, device: str, new: bool
) -> dict[str, Any]:
    """One box: {id, outcome, action, version, seconds, …}; each step says what it does and why.

    Nobody else deploys to the box meanwhile; the lock goes back as the run starts.
    """
    began = time.monotonic()
    with nullcontext() if desk.dry_run else deploying(box):
        settings = desk.box(name)
        found = look(desk, name, box, questions(desk, box, settings, data))
        way = choose_way(name, settings, desk.config.run, found, device)
        desk.show.step(
            f"{name}: {found['system']['os']}; runner {way.runner}, device {way.device} ({way.why})"
        )
        arm(desk, name, box, settings)
        version, dataset = bring_data(desk, box, data)
        image = bring_image(desk, box, settings, way, found, dataset)
        ready = replace(settings, runner=way.runner, device=way.device)  # type: ignore[arg-type]
        request = plan_launch(desk, name, dataset, image, args, gpus, ready)
        start = choose_start(found["runs"], request["fingerprint"], version, image, new)
        if start.action != "attach":
            release_with_next(box)
        report = carry_out(desk, name, box, start, request)
    seconds = time.monotonic() - began
    desk.show.note(f"{name}: {show_duration(seconds)} in all")
    return {**report, "action": start.action, "version": version, "seconds": seconds}


def questions(desk: Desk, box: Agent, settings: Box, data: str) -> list[Question]:
    """What is asked next where nothing has changed: is the keeper armed with this very rule, and
    which version of the data set is there."""
    asked: list[Question] = []
    if not isinstance(box.link, LocalLink) and not desk.dry_run:
        asked.append(("arm", {"same_as": rule_of(desk, box, settings)[2]}))
    if data or desk.config.run.data:
        named, _ = asked_for(desk, "", data or desk.config.run.data, "", "")
        asked.append(("data_state", {"name": named}))
    return asked


def look(desk: Desk, name: str, box: Agent, ahead: Sequence[Question] = ()) -> dict[str, Any]:
    """What the box is and has; waits for another deploy there and says for whose."""

    def event(told: dict[str, Any]) -> None:
        if "waits_for" in told:
            desk.show.note(f"{name}: waiting for {told['waits_for']}")

    images = [desk.config.run.image or each for each in IMAGES.values()]
    found = box.call("prospect", event, ahead=ahead, images=images)
    for note in found["notes"]:
        desk.show.warn(note)
    return found


def arm(desk: Desk, name: str, box: Agent, settings: Box) -> None:
    """Arm the keeper before the first costly step; this machine's own is left to `fab idle --arm`."""
    if isinstance(box.link, LocalLink):
        desk.show.note(f"{name}: no keeper on this machine, it is yours (fab idle --arm)")
    elif desk.dry_run:
        idle = settings.idle
        desk.show.say(
            f"{name}: arm the keeper: reminds after {show_duration(idle.remind_after)} idle, "
            f"stops after {show_duration(idle.stop_after)}"
        )
    else:
        say_armed(desk, name, arm_keeper(desk, box, settings))


def bring_data(desk: Desk, box: Agent, data: str) -> tuple[str, dict[str, str] | None]:
    """Upload the data set; its version, and what the run's request says of it."""
    name = data or desk.config.run.data
    if not name:
        desk.show.note("no data set is named (run.data): the program gets an empty /input")
        return "", None
    name, wanted = asked_for(desk, "", name, "", "")
    version = str(upload_set(desk, box, name, wanted)["version"])
    return version, {"name": Name(name), "version": version}


def bring_image(
    desk: Desk,
    box: Agent,
    settings: Box,
    way: Way,
    found: dict[str, Any],
    dataset: dict[str, str] | None,
) -> str:
    """The exact id of the image on the box; "" where the run is a plain process.

    The data set is staged on the box while the image is made: the run waits for what is left of it.
    """

    def stage_meanwhile() -> None:
        if dataset:
            box.call("stage_ahead", name=dataset["name"], version=dataset["version"])
            desk.show.note(f"{dataset['name']}: is staged meanwhile")

    if way.runner != "docker":
        return ""
    return str(ensure_image(desk, box, settings, found, way.device, stage_meanwhile)["id"])


def carry_out(
    desk: Desk, name: str, box: Agent, start: Start, request: dict[str, Any]
) -> dict[str, Any]:
    """Start, resume, or only say that it runs already."""
    if start.action == "attach":
        desk.show.done(f"{start.why}: nothing to start (--new starts another)")
        return {"id": start.run, "outcome": "attached"}
    if start.action == "new":
        desk.show.note(f"a new run: {start.why}")
        return submit(desk, name, box, request)
    if desk.dry_run:
        desk.show.say(f"resume {start.run} on {name}: {start.why}")
        return {"id": start.run, "outcome": "planned"}
    desk.show.step(f"resume {start.run}: {start.why} (--new starts another)")
    report = watched(desk, name, box, "resume", {"run": start.run, "wait": True}, start.run)
    return conclude(desk, report)
