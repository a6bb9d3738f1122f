"""`fab build`: build the image of this clone, here or on the box; only the build context travels."""

from __future__ import annotations

from typing import Any

from deploy.effects import engine
from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink
from deploy.errors import EngineError
from deploy.verbs.bring import build_there, built_here, inputs_of, tag_of
from deploy.verbs.desk import Desk


def build(desk: Desk, device: str = "cpu") -> list[dict[str, Any]]:
    tag = tag_of(device)
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            results.append({"box": name, "tag": tag, **build_on(desk, box, device)})
    return results


def build_on(desk: Desk, box: Agent, device: str) -> dict[str, Any]:
    """{id, action, why}; nothing is built where the image is from the same files already."""
    name, tag, inputs = box.link.name, tag_of(device), inputs_of(desk, device)
    local = isinstance(box.link, LocalLink)
    if local and engine.laptop_engine() is None:
        raise EngineError("no Docker engine answers here", "start it, or fab build --host BOX")
    there = engine.image_here(tag) if local else box.call("image_state", tag=tag)
    if there["id"] and there["inputs"] == inputs:
        desk.show.done(f"{tag}: there already (built from the same files)")
        return {"id": there["id"], "action": "keep", "why": "built from the same files"}
    why = "built from other files" if there["id"] else f"not on {name}"
    if desk.dry_run:
        desk.show.say(f"{tag}: build on {name} ({why})")
        return {"id": "", "action": "build", "why": why}
    if local:
        image = str(built_here(desk, device, tag, why)["id"])
    else:
        image = build_there(desk, box, device, tag, why)
    desk.show.done(f"{tag}: {image[:19]} is on {name}")
    return {"id": image, "action": "build", "why": why}
