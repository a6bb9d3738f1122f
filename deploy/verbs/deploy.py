"""`fab deploy`: the whole way to a running container: look, arm, upload, image, stage, start."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from deploy.effects.agent import Agent
from deploy.plan.config import Box, Name
from deploy.plan.deploy import IMAGES, Start, Way, choose_start, choose_way
from deploy.plan.quantities import show_duration
from deploy.verbs.desk import Desk
from deploy.verbs.launch import conclude, plan_launch, submit, watched
from deploy.verbs.ship import ensure_image
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
        from deploy.verbs.logs import follow_run

        follow_run(desk, desk.hosts[-1], results[-1]["id"])
    return results


def deploy_to(
    desk: Desk, name: str, box: Agent, data: str, args: str, gpus: str, device: str, new: bool
) -> dict[str, Any]:
    """One box: {id, outcome, action, version, seconds, …}; each step says what it does and why."""
    began = time.monotonic()
    settings = desk.box(name)
    found = box.call("prospect", images=[desk.config.run.image or each for each in IMAGES.values()])
    way = choose_way(name, settings, desk.config.run, found, device)
    desk.show.step(
        f"{name}: {found['system']['os']}; runner {way.runner}, device {way.device} ({way.why})"
    )
    for note in found["notes"]:
        desk.show.warn(f"{name}: {note}")
    version, dataset = bring_data(desk, box, data)
    image = bring_image(desk, box, settings, way, found)
    settings_now = replace(settings, runner=way.runner, device=way.device)  # type: ignore[arg-type]
    request = plan_launch(desk, name, dataset, image, args, gpus, settings_now)
    start = choose_start(found["runs"], request["fingerprint"], version, image, new)
    report = carry_out(desk, name, box, start, request)
    seconds = time.monotonic() - began
    desk.show.note(f"{name}: {show_duration(seconds)} in all")
    return {
        **report,
        "action": start.action,
        "version": version,
        "seconds": seconds,
    }


def bring_data(desk: Desk, box: Agent, data: str) -> tuple[str, dict[str, str] | None]:
    """Upload the data set; its version, and what the run's request says of it."""
    name = data or desk.config.run.data
    if not name:
        desk.show.note("no data set is named (run.data): the program gets an empty /input")
        return "", None
    name, wanted = asked_for(desk, "", name, "", "")
    version = str(upload_set(desk, box, name, wanted)["version"])
    return version, {"name": Name(name), "version": version}


def bring_image(desk: Desk, box: Agent, settings: Box, way: Way, found: dict[str, Any]) -> str:
    """The exact id of the image on the box; "" where the run is a plain process."""
    if way.runner != "docker":
        return ""
    return str(ensure_image(desk, box, settings, found, way.device)["id"])


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
