"""Brings the image to a box without a registry: kept, shipped from here or a box, or built there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from deploy.effects import engine
from deploy.effects.agent import Agent, read_frames
from deploy.effects.link import LocalLink, finish
from deploy.effects.program import own_packages
from deploy.effects.shipment import frames_from_here
from deploy.errors import EngineError, ImageError, KitError, UsageError
from deploy.plan.config import Box
from deploy.plan.deploy import ALL_IMAGES, ENVIRONMENTS
from deploy.plan.image import BASE, by_the_better_line, must_be_there, plan_image
from deploy.plan.quantities import show_size
from deploy.plan.shipment import (
    deflate_level,
    known_layers,
    plan_shipment,
    same_image,
    why_these,
)
from deploy.verbs.desk import Desk

TRIAL = 1 << 20  # bytes

# Frames of an image: (wanted layers, what to tell of bytes done, zlib's level, indexed)
Source = Callable[[dict[str, int], Callable[[int], None], int, bool], Iterator[bytes]]


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


def tag_of(device: str) -> str:
    if device not in ALL_IMAGES:
        raise UsageError(f"--device {device}", "cpu, gpu or notebook")
    return ALL_IMAGES[device]


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


def ensure_image(
    desk: Desk, box: Agent, settings: Box, facts: dict[str, Any], device: str
) -> dict[str, Any]:
    """See that the box has the image that a run is started from; {id, action, why}.

    facts  what `prospect` answered, with the image's id and digest on the box
    """
    own = desk.config.run.image
    if own:
        image = must_be_there(box.link.name, own, facts["images"][own])
        return {"id": image, "action": "keep", "why": "the user's own"}
    return bring_ours(desk, box, facts, device)


def bring_ours(desk: Desk, box: Agent, facts: dict[str, Any], device: str) -> dict[str, Any]:
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
    if bring.action == "build":
        image = build_or_ship(desk, box, device, tag, bring.why)
    else:
        image = ship_ours(desk, box, device, tag, bring.why)
    desk.show.done(f"{tag}: {image[:19]} is on {name}")
    return {"id": image, **bring._asdict()}


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


def inputs_of(desk: Desk, device: str) -> str:
    """The digest of all that the image is built from: the clone's files and the user's packages."""
    return engine.inputs_digest(device, own_packages(desk.config.run.requirements))


def layers_known(box: Agent, tag: str) -> int:
    """How many leading layers of our image here the box has."""
    ours = engine.image_here(tag)["layers"]
    return known_layers(ours, box.call("image_state", tag=tag)["images"])


def line_rate(box: Agent) -> float:
    """Bytes per second to the box: TRIAL bytes that it throws away, less the time of none."""
    times = []
    for size in (0, TRIAL):
        began = time.monotonic()
        box.link.run("exec cat >/dev/null", os.urandom(size))
        times.append(time.monotonic() - began)
    return TRIAL / max(times[1] - times[0], 1e-6)


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


def frames_of_box(giver: Agent, tag: str) -> Source:
    """The frames as the box `giver` makes them from its own engine."""

    def frames(
        wanted: dict[str, int], told: Callable[[int], None], level: int, indexed: bool
    ) -> Iterator[bytes]:
        request = {"tag": tag, "wanted": wanted, "level": level, "indexed": indexed}
        stream = giver.open("save_layers", **request)
        try:
            stream.stdin.close()
            for block in read_frames(stream.stdout):
                told(len(block))
                yield block
        finally:
            stream.close()

    return frames


def send_image(
    desk: Desk, box: Agent, tag: str, image: dict[str, Any], source: Source | None = None
) -> str:
    """Send the layers that the box lacks, from where an earlier try broke off; the id it has there.

    source  where the frames come from; the engine here without one
    Where the box's engine refuses an image without the layers that it has, all are sent.
    """
    if isinstance(box.link, LocalLink):
        return str(image["id"])
    name = box.link.name
    state = box.call("image_state", tag=tag)
    refuse_other_architecture(name, tag, image, state["architecture"])
    if same_image(image["told"], state["told"]):
        desk.show.done(f"{tag}: there already (the same image)")
        return str(state["id"])

    def from_here(
        wanted: dict[str, int], told: Callable[[int], None], level: int, indexed: bool
    ) -> Iterator[bytes]:
        return frames_from_here(tag, image, wanted, told, level, indexed)

    frames = source or from_here
    answer = send_layers(desk, box, tag, image, state, frames)
    if answer["refused"]:
        desk.show.warn(f"{tag}: {answer['refused']}; sending every layer")
        again = {**box.call("image_state", tag=tag), "images": []}
        answer = send_layers(desk, box, tag, image, again, frames)
    if answer["refused"]:
        raise ImageError(f"{name}: {tag}: {answer['refused']}", "fab doctor")
    return str(answer["id"])


def send_layers(
    desk: Desk, box: Agent, tag: str, image: dict[str, Any], state: dict[str, Any], source: Source
) -> dict[str, Any]:
    """One try: {id, refused}."""
    layers = image["layers"]
    wanted = plan_shipment(layers, state["images"], state["spooled"])
    desk.show.step(f"{tag}: sending {why_these(layers, wanted)} to {box.link.name}")
    level = deflate_level(line_rate(box))
    faults: list[Exception] = []  # of the thread that feeds: the stream then ends unfinished
    sent = 0
    with desk.show.progress(tag, image["size"]) as bar:

        def frames() -> Iterator[bytes]:
            nonlocal sent
            try:
                for block in source(wanted, bar.advance, level, state["containerd"]):
                    sent += len(block)
                    yield block
            except (KitError, OSError) as no:
                faults.append(no)

        try:
            answer = feed(box, "load_layers", frames(), tag=tag)
        except KitError as no:
            raise faults[0] if faults else no from None
    desk.show.note(f"{tag}: {show_size(sent)} went over the line")
    return {**answer, "sent": sent}


def refuse_other_architecture(name: str, tag: str, here: dict[str, Any], architecture: str) -> None:
    if here["architecture"] and architecture and here["architecture"] != architecture:
        raise ImageError(
            f"{tag} is for {here['architecture']}, {name} is {architecture}",
            f"build it there: fab build --host {name}",
        )


def feed(
    box: Agent,
    verb: str,
    blocks: Iterable[bytes],
    tell: Callable[[str], None] = lambda line: None,
    **request: Any,
) -> dict[str, Any]:
    """Call a verb that reads blocks to the end of its input; `tell` gets what it says meanwhile."""
    stream = box.open(verb, **request)

    def on_line(line: bytes) -> None:
        if line.startswith(b"#"):  # BuildKit's plain progress
            tell(line.decode(errors="replace").rstrip())

    try:
        done = finish(stream, blocks, on_line, box.link.name)
    finally:
        stream.close()
    return box.answer(verb, done)
