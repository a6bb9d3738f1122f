"""`fab ship`: an image to a box without a registry, from the engine here or from another box."""

from __future__ import annotations

from typing import Any

from deploy.effects import engine
from deploy.effects.agent import Agent
from deploy.errors import EngineError, ImageError, UsageError
from deploy.plan.shipment import plan_shipment, why_these
from deploy.verbs.bring import built_here, tag_of
from deploy.verbs.desk import Desk
from deploy.verbs.shipping import frames_of_box, send_image


def ship(desk: Desk, device: str = "cpu", image: str = "", from_: str = "") -> list[dict[str, Any]]:
    """`fab ship`: our image of this clone (built first where it is not), or any image by name;
    `from_` another box, whose image it is."""
    tag = image or tag_of(device)
    if from_:
        return ship_from(desk, from_, tag)
    if engine.laptop_engine() is None:
        raise EngineError("no Docker engine answers here", "start it, or fab build --host BOX")
    here = engine.image_here(tag)
    if not image and not desk.dry_run:
        here = built_here(desk, device, tag, "not from these files")
    if image and not here["id"]:
        raise ImageError(f"no image {image} in the engine here", "docker image ls shows them")
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            if desk.dry_run:
                results.append({"box": name, **planned(desk, box, tag, here["layers"], "here")})
                continue
            results.append({"box": name, "id": send_image(desk, box, tag, here)})
        desk.show.done(f"{tag}: {results[-1]['id'][:19]} is on {name}")
    return results


def ship_from(desk: Desk, source: str, tag: str) -> list[dict[str, Any]]:
    """The image of one box to others; its bytes pass through this machine and are not kept here."""
    if source in desk.hosts:
        raise UsageError(f"--from {source} --host {source}", "name two boxes")
    results = []
    with desk.open(source) as giver:
        there = giver.call("image_state", tag=tag)
        if not there["id"]:
            raise ImageError(f"{source}: no image {tag} there", f"fab ship --host {source}")
        image = engine.described(there["told"])
        for name in desk.hosts:
            with desk.open(name) as box:
                if desk.dry_run:
                    results.append(
                        {"box": name, **planned(desk, box, tag, image["layers"], source)}
                    )
                    continue
                frames = frames_of_box(giver, tag)
                results.append({"box": name, "id": send_image(desk, box, tag, image, frames)})
            desk.show.done(f"{tag}: {results[-1]['id'][:19]} is on {name}, from {source}")
    return results


def planned(desk: Desk, box: Agent, tag: str, layers: list[str], where: str) -> dict[str, Any]:
    """Say what would be sent; {id, why}."""
    theirs = box.call("image_state", tag=tag)["images"]
    words = why_these(layers, plan_shipment(layers, theirs, {}))
    desk.show.say(f"{tag}: send {words} to {box.link.name}, from {where}")
    return {"id": "", "why": words}
