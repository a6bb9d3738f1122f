"""Brings the image to a box without a registry: kept, shipped from here, or built there."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from deploy.effects import engine
from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink, finish
from deploy.errors import ImageError
from deploy.plan.config import Box
from deploy.plan.deploy import IMAGES
from deploy.plan.image import Bring, must_be_there, plan_image
from deploy.plan.quantities import show_size
from deploy.verbs.desk import Desk


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
    if bring.action == "keep":
        desk.show.done(f"{tag}: there already ({bring.why})")
        return {"id": there["id"], **bring._asdict()}
    if desk.dry_run:
        desk.show.say(f"{tag}: {bring.action} ({bring.why})")
        return {"id": "", **bring._asdict()}
    if bring.action == "build":
        image = build_there(desk, box, device, tag, inputs, bring)
    else:
        image = build_and_ship(desk, box, device, tag, inputs, bring)
    desk.show.done(f"{tag}: {image[:19]} is on {name}")
    return {"id": image, **bring._asdict()}


def build_there(desk: Desk, box: Agent, device: str, tag: str, inputs: str, bring: Bring) -> str:
    """Build on the box: only the build context travels."""
    desk.show.step(f"{tag}: building on {box.link.name} ({bring.why})")
    content = engine.context_tar(device)
    answer = feed(desk, box, "build_image", [content], device=device, tag=tag, inputs=inputs)
    return str(answer["id"])


def build_and_ship(desk: Desk, box: Agent, device: str, tag: str, inputs: str, bring: Bring) -> str:
    """Build here unless that was done, then send it, compressed."""
    here = engine.image_here(tag)
    if here["inputs"] != inputs:
        desk.show.step(f"{tag}: building here ({bring.why})")
        engine.build_here(device, tag, inputs)
        here = engine.image_here(tag)
    if isinstance(box.link, LocalLink):
        return str(here["id"])
    desk.show.step(f"{tag}: sending {show_size(here['size'])} to {box.link.name} ({bring.why})")
    with desk.show.progress(tag, here["size"]) as bar:
        blocks = squeezed(counted(engine.saved(tag), bar.advance))
        answer = feed(desk, box, "load_image", blocks, tag=tag)
    if answer["id"] != here["id"]:
        raise ImageError(
            f"{tag}: the box says {answer['id'][:19]}, here it is {here['id'][:19]}",
            "the engines differ in how they store images: build it there (no engine here)",
        )
    return str(here["id"])


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
