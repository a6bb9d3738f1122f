"""Brings the image to a box without a registry: kept, shipped from here, or built there."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from deploy.effects import engine
from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink, finish
from deploy.effects.shipment import Unfit, saved_frames
from deploy.errors import EngineError, ImageError, KitError, UsageError
from deploy.plan.config import Box
from deploy.plan.deploy import IMAGES
from deploy.plan.image import BASE, by_the_better_line, must_be_there, plan_image
from deploy.plan.quantities import show_size
from deploy.plan.shipment import deflate_level, known_layers, plan_shipment, why_these
from deploy.verbs.desk import Desk

TRIAL = 1 << 20  # bytes


def ship(desk: Desk, device: str = "cpu", image: str = "") -> list[dict[str, Any]]:
    """`fab ship`: our image of this clone (built first where it is not), or any image by name."""
    if device not in IMAGES:
        raise UsageError(f"--device {device}", "cpu or gpu")
    if engine.laptop_engine() is None:
        raise EngineError("no Docker engine answers here", "start it, or fab build --host BOX")
    tag = image or IMAGES[device]
    here = engine.image_here(tag)
    if not image and not desk.dry_run:
        here = built_here(desk, device, tag, engine.inputs_digest(device), "not from these files")
    if image and not here["id"]:
        raise ImageError(f"no image {image} in the engine here", "docker image ls shows them")
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            if desk.dry_run:
                layers = box.call("image_state", tag=tag)["images"]
                words = why_these(here["layers"], plan_shipment(here["layers"], layers, {}))
                desk.show.say(f"{tag}: send {words} to {name}")
                results.append({"box": name, "id": "", "why": words})
                continue
            results.append({"box": name, "id": send_image(desk, box, tag, here)})
        desk.show.done(f"{tag}: {here['id'][:19]} is on {name}")
    return results


def ensure_image(
    desk: Desk, box: Agent, settings: Box, facts: dict[str, Any], device: str
) -> dict[str, Any]:
    """See that the box has the image that this clone stands for; {id, action, why}.

    facts  what `prospect` answered, with the image's id and digest on the box
    """
    name, tag = box.link.name, desk.config.run.image or IMAGES[device]
    there = facts["images"][tag]
    if desk.config.run.image:
        return {"id": must_be_there(name, tag, there), "action": "keep", "why": "the user's own"}
    inputs = engine.inputs_digest(device)
    here = None if there["inputs"] == inputs else engine.laptop_engine()
    bring = plan_image(name, there, inputs, here, facts["system"]["machine"])
    if bring.action == "ship" and not isinstance(box.link, LocalLink):
        bring = by_the_better_line(bring, device, layers_known(box, tag), line_rate(box))
    if bring.action == "keep":
        desk.show.done(f"{tag}: there already ({bring.why})")
        return {"id": there["id"], **bring._asdict()}
    if desk.dry_run:
        desk.show.say(f"{tag}: {bring.action} ({bring.why})")
        return {"id": "", **bring._asdict()}
    if bring.action == "build":
        image = build_there(desk, box, device, tag, inputs, bring.why)
    else:
        image = build_and_ship(desk, box, device, tag, inputs, bring.why)
    desk.show.done(f"{tag}: {image[:19]} is on {name}")
    return {"id": image, **bring._asdict()}


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


def build_there(desk: Desk, box: Agent, device: str, tag: str, inputs: str, why: str) -> str:
    """Build on the box: only the build context travels, and the base where the box lacks it."""
    base = engine.image_here(BASE)
    if base["id"] and box.call("image_state", tag=BASE)["architecture"] == base["architecture"]:
        send_image(desk, box, BASE, base)  # no registry and no mmdebstrap are needed there then
    desk.show.step(f"{tag}: building on {box.link.name} ({why})")
    content = engine.context_tar(device)
    answer = feed(desk, box, "build_image", [content], device=device, tag=tag, inputs=inputs)
    return str(answer["id"])


def build_and_ship(desk: Desk, box: Agent, device: str, tag: str, inputs: str, why: str) -> str:
    """Build here unless that was done, then send what the box lacks of it."""
    return send_image(desk, box, tag, built_here(desk, device, tag, inputs, why))


def built_here(desk: Desk, device: str, tag: str, inputs: str, why: str) -> dict[str, Any]:
    """Our image in the engine here, built now unless it is from these very files."""
    here = engine.image_here(tag)
    if here["inputs"] != inputs:
        desk.show.step(f"{tag}: building here ({why})")
        engine.build_here(device, tag, inputs)
        here = engine.image_here(tag)
    return here


def send_image(desk: Desk, box: Agent, tag: str, here: dict[str, Any]) -> str:
    """Send the layers that the box lacks, from where an earlier try broke off; the image's id.

    Where its engine refuses an image without the layers that it has, all are sent; where the one
    here saves in another form, the whole as it is.
    """
    if isinstance(box.link, LocalLink):
        return str(here["id"])
    state = box.call("image_state", tag=tag)
    refuse_other_architecture(box.link.name, tag, here, state["architecture"])
    if state["id"] == here["id"]:
        desk.show.done(f"{tag}: there already (the same id)")
        return str(here["id"])
    try:
        answer = send_layers(desk, box, tag, here, state["images"], state["spooled"])
        if answer["refused"]:
            desk.show.warn(f"{tag}: {answer['refused']}; sending every layer")
            spooled = box.call("image_state", tag=tag)["spooled"]
            answer = send_layers(desk, box, tag, here, [], spooled)
        if answer["refused"]:
            raise ImageError(f"{box.link.name}: {tag}: {answer['refused']}", "fab doctor")
    except Unfit as no:
        desk.show.warn(f"{tag}: docker save names layers otherwise ({no}); sending the whole")
        answer = send_whole(desk, box, tag, here)
    return str(answer["id"])


def send_layers(
    desk: Desk,
    box: Agent,
    tag: str,
    here: dict[str, Any],
    theirs: list[list[str]],
    spooled: dict[str, int],
) -> dict[str, Any]:
    """One try: {id, refused}."""
    layers = here["layers"]
    wanted = plan_shipment(layers, theirs, spooled)
    name = box.link.name
    desk.show.step(f"{tag}: sending {why_these(layers, wanted)} to {name}")
    level = deflate_level(line_rate(box))
    faults: list[Exception] = []  # of the thread that feeds: the stream then ends unfinished
    sent = 0
    with desk.show.progress(tag, here["size"]) as bar:

        def frames() -> Iterator[bytes]:
            nonlocal sent
            try:
                for block in saved_frames(tag, here, wanted, bar.advance, level):
                    sent += len(block)
                    yield block
            except (Unfit, KitError, OSError) as no:
                faults.append(no)

        try:
            answer = feed(desk, box, "load_layers", frames(), tag=tag, id=here["id"])
        except KitError as no:
            raise faults[0] if faults else no from None
    desk.show.note(f"{tag}: {show_size(sent)} went over the line")
    return {**answer, "sent": sent}


def send_whole(desk: Desk, box: Agent, tag: str, here: dict[str, Any]) -> dict[str, Any]:
    """The whole saved image, compressed; {id}, checked against ours."""
    with desk.show.progress(tag, here["size"]) as bar:
        blocks = squeezed(counted(engine.saved(tag), bar.advance))
        answer = feed(desk, box, "load_image", blocks, tag=tag)
    if answer["id"] != here["id"]:
        raise ImageError(
            f"{tag}: the box says {answer['id'][:19]}, here it is {here['id'][:19]}",
            f"the engines differ in how they keep images: fab build --host {box.link.name}",
        )
    return answer


def refuse_other_architecture(name: str, tag: str, here: dict[str, Any], architecture: str) -> None:
    if here["architecture"] and architecture and here["architecture"] != architecture:
        raise ImageError(
            f"{tag} is for {here['architecture']}, {name} is {architecture}",
            f"build it there: fab build --host {name}",
        )


def counted(blocks: Iterable[bytes], tell: Any) -> Iterator[bytes]:
    for block in blocks:
        tell(len(block))
        yield block


def squeezed(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """gzip, the quickest level: `docker load` reads it as it is."""
    packer = zlib.compressobj(1, wbits=31)
    for block in blocks:
        if packed := packer.compress(block):
            yield packed
    yield packer.flush()


def feed(
    desk: Desk, box: Agent, verb: str, blocks: Iterable[bytes], **request: Any
) -> dict[str, Any]:
    """Call a verb that reads blocks to the end of its input."""
    stream = box.open(verb, **request)
    try:
        done = finish(stream, blocks, lambda line: _tell(desk, line), box.link.name)
    finally:
        stream.close()
    return box.answer(verb, done)


def _tell(desk: Desk, line: bytes) -> None:
    if line.startswith(b"#"):  # BuildKit's plain progress
        desk.show.note(line.decode(errors="replace").rstrip())
