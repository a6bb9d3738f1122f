"""`fab stage`: copy one version of a data set from the box's /data to its fast disk."""

from __future__ import annotations

from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.program import packed_program
from deploy.effects.settings import root
from deploy.plan.deploy import IMAGES
from deploy.plan.quantities import show_size
from deploy.verbs.desk import Desk


def stage(desk: Desk, name: str, version: str, verify: bool) -> list[dict[str, Any]]:
    results = []
    for host in desk.hosts:
        with desk.open(host) as box:
            found = stage_set(desk, box, name or str(desk.config.run.data), version, verify)
            if not desk.dry_run:
                found["check"] = look_at(desk, host, box, found)
        results.append({"box": host, **found})
    return results


def stage_set(
    desk: Desk, box_agent: Agent, name: str, version: str = "current", verify: bool = False
) -> dict[str, Any]:
    """Stage it, or learn that it is there.

    Returns path (of this version), link (/input/NAME), version, files, bytes, already, seconds.
    """
    if desk.dry_run:
        desk.show.say(f"{name}: version {version} would be staged on {box_agent.link.name}")
        return {"name": name, "version": version, "path": "", "already": False}
    with desk.show.progress(f"staging {name}", None) as bar:

        def event(told: dict[str, Any]) -> None:
            if "staged" in told:
                bar.at(told["staged"], total=told["total"], detail=told["file"])
            if "note" in told:
                desk.show.note(told["note"])

        found = box_agent.call("stage", event, name=name, version=version, verify=verify)
    size = f"{found['files']} files, {show_size(found['bytes'])}"
    what = "there already" if found["already"] else f"staged in {found['seconds']:.1f} s"
    desk.show.done(f"{name}: {size}, {what}: {found['path']}")
    return {"name": name, **found}


def look_at(desk: Desk, host: str, box: Agent, staged: dict[str, Any]) -> dict[str, Any]:
    """The workload's own check: {said: what is there} or {skipped: why it was not looked at}.

    Only of the set that our workload is to train on: a program of the user's own, or another set,
    has its own idea of what is right.
    """
    run = desk.config.run
    if run.code or run.command[:3] != ("python", "-m", "workload"):
        return {"skipped": "the program is your own"}
    if staged["name"] != run.data:
        return {"skipped": f"run.data is {run.data or 'not set'}"}
    answer = box.call(
        "check_staged",
        path=staged["path"],
        images=[run.image] if run.image else list(IMAGES.values()),
        python=desk.box(host).python,
        code=packed_program(root() / "workload", None),
    )
    if "said" in answer:
        desk.show.done(f"{staged['name']}: {answer['said']}")
    else:
        desk.show.note(f"not checked for training: {answer['skipped']}")
    return answer
