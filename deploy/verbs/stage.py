"""`fab stage`: copy one version of a data set from the box's /data to its fast disk."""

from __future__ import annotations

from typing import Any

from deploy.effects.agent import Agent
from deploy.plan.quantities import show_size
from deploy.verbs.desk import Desk


def stage(desk: Desk, name: str, version: str, verify: bool) -> list[dict[str, Any]]:
    results = []
    for host in desk.hosts:
        with desk.open(host) as box:
            found = stage_set(desk, box, name or str(desk.config.run.data), version, verify)
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
