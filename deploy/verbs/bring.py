"""Brings the image that a clone stands for to a box: kept, shipped from here, or built there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deploy.effects import engine
from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink
from deploy.effects.program import own_packages
from deploy.errors import ImageError, UsageError
from deploy.plan.config import Box
from deploy.plan.deploy import ALL_IMAGES, ENVIRONMENTS
from deploy.plan.image import BASE, by_the_better_line, must_be_there, plan_image
from deploy.plan.shipment import known_layers
from deploy.verbs.desk import Desk
from deploy.verbs.shipping import feed, line_rate, send_image


def ensure_image(
    desk: Desk,
    box: Agent,
    settings: Box,
    facts: dict[str, Any],
    device: str,
    meanwhile: Callable[[], None],
) -> dict[str, Any]:
    """See that the box has the image that a run is started from; {id, action, why}.

    facts      what `prospect` answered, with the image's id and digest on the box
    meanwhile  is called before the image is made or sent, which takes long
    """
    own = desk.config.run.image
    if own:
        image = must_be_there(box.link.name, own, facts["images"][own])
        return {"id": image, "action": "keep", "why": "the user's own"}
    return bring_ours(desk, box, facts, device, meanwhile)


def bring_ours(
    desk: Desk,
    box: Agent,
    facts: dict[str, Any],
    device: str,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """See that the box has the image that this clone stands for; {id, action, why}.

    device  cpu, gpu or notebook
    """
    name, tag = box.link.name, ALL_IMAGES[device]
    there = facts["images"][tag]
    inputs = inputs_of(desk, device)
    here = None if there["inputs"] == inputs else engine.laptop_engine()
    bring = plan_image(name, there, inputs, here, facts["system"]["machine"])
    if bring.action == "ship" and not isinstance(box.link, LocalLink):
        known = layers_known(box, ENVIRONMENTS.get(device, tag))
        bring = by_the_better_line(bring, device, known, line_rate(box))
    if bring.action == "keep":
        desk.show.done(f"{tag}: there already ({bring.why})")
        return {"id": there["id"], **bring._asdict()}
    if desk.config.run.requirements:
        desk.show.note(f"{tag}: with your packages of {desk.config.run.requirements}")
    if desk.dry_run:
        desk.show.say(f"{tag}: {bring.action} ({bring.why})")
        return {"id": "", **bring._asdict()}
    meanwhile()
    if bring.action == "build":
        image = build_or_ship(desk, box, device, tag, bring.why)
    else:
        image = ship_ours(desk, box, device, tag, bring.why)
    desk.show.done(f"{tag}: {image[:19]} is on {name}")
    return {"id": image, **bring._asdict()}


def inputs_of(desk: Desk, device: str) -> str:
    """The digest of all that the image is built from: the clone's files and the user's packages."""
    return engine.inputs_digest(device, own_packages(desk.config.run.requirements))


def layers_known(box: Agent, tag: str) -> int:
    """How many leading layers of our image here the box has."""
    ours = engine.image_here(tag)["layers"]
    return known_layers(ours, box.call("image_state", tag=tag)["images"])


def ship_ours(desk: Desk, box: Agent, device: str, tag: str, why: str) -> str:
    """Ship the image without the kit's own programs, which change most, and add those on the box.

    A change in them then needs no `docker save`, which writes the whole image before a byte comes.
    """
    if isinstance(box.link, LocalLink) or device not in ENVIRONMENTS:
        return send_image(desk, box, tag, built_here(desk, device, tag, why))
    environment = ENVIRONMENTS[device]
    send_image(desk, box, environment, environment_here(desk, device, why))
    try:
        return build_upon(desk, box, device, tag, why, environment)
    except ImageError as no:
        desk.show.warn(f"{no.message}; so it is built here and shipped whole")
        return send_image(desk, box, tag, built_here(desk, device, tag, why))


def build_or_ship(desk: Desk, box: Agent, device: str, tag: str, why: str) -> str:
    """Build on the box; where that fails and an engine here makes images for it, ship one after all."""
    try:
        return build_there(desk, box, device, tag, why)
    except ImageError as no:
        here = engine.laptop_engine()
        architecture = box.call("image_state", tag=tag)["architecture"]
        if here is None or here["architecture"] != architecture:
            raise
        desk.show.warn(f"{no.message}; so it is built here and shipped")
        return send_image(desk, box, tag, built_here(desk, device, tag, "it failed there"))


def build_there(desk: Desk, box: Agent, device: str, tag: str, why: str) -> str:
    """Build on the box: only the build context travels, and the base where the box lacks it."""
    base = engine.image_here(BASE)
    if base["id"] and box.call("image_state", tag=BASE)["architecture"] == base["architecture"]:
        send_image(desk, box, BASE, base)  # no registry and no mmdebstrap are needed there then
    return build_upon(desk, box, device, tag, why, "")


def build_upon(desk: Desk, box: Agent, device: str, tag: str, why: str, environment: str) -> str:
    """Build on the box upon its image `environment`; "": all of it, from the base on."""
    packages = own_packages(desk.config.run.requirements)
    content = engine.context_tar(device, packages)
    request = {"device": device, "tag": tag, "inputs": engine.inputs_digest(device, packages)}
    with desk.show.doing(f"{tag}: building on {box.link.name} ({why})") as tell:
        answer = feed(box, "build_image", [content], tell, **request, environment=environment)
    return str(answer["id"])


def built_here(desk: Desk, device: str, tag: str, why: str) -> dict[str, Any]:
    """Our image in the engine here, built now unless it is from these very files."""
    return _built(desk, device, tag, why, engine.PARTS, "")


def environment_here(desk: Desk, device: str, why: str) -> dict[str, Any]:
    """The same without the kit's own programs."""
    return _built(desk, device, ENVIRONMENTS[device], why, engine.ENVIRONMENT, "env")


def _built(
    desk: Desk, device: str, tag: str, why: str, parts: tuple[str, ...], target: str
) -> dict[str, Any]:
    packages = own_packages(desk.config.run.requirements)
    inputs = engine.inputs_digest(device, packages, parts)
    here = engine.image_here(tag)
    if here["inputs"] != inputs:
        with desk.show.doing(f"{tag}: building here ({why})") as tell:
            engine.build_here(device, tag, inputs, tell, packages, target)
        here = engine.image_here(tag)
    return here


def tag_of(device: str) -> str:
    if device not in ALL_IMAGES:
        raise UsageError(f"--device {device}", "cpu, gpu or notebook")
    return ALL_IMAGES[device]
