"""Sends an image to a box: only layers that it lacks, from here or from another box, verified."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from deploy.effects.agent import Agent, read_frames
from deploy.effects.link import LocalLink, finish
from deploy.effects.shipment import frames_from_here
from deploy.errors import ImageError, KitError
from deploy.plan.quantities import show_size
from deploy.plan.shipment import deflate_level, plan_shipment, same_image, why_these
from deploy.verbs.desk import Desk

TRIALS = (1 << 20, 16 << 20)  # bytes
CHANCE = 0.1  # s that a trial may take longer or shorter for other reasons than the line's

# Frames of an image: (wanted layers, what to tell of bytes done, zlib's level, indexed)
Source = Callable[[dict[str, int], Callable[[int], None], int, bool], Iterator[bytes]]


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
    desk.show.step(f"{tag} to {box.link.name}: {why_these(layers, wanted)}")
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


def line_rate(box: Agent) -> float:
    """Bytes per second to the box: of bytes that it throws away, less the time of none.

    A fast line is tried with more of them: the first few take no longer there than chance adds.
    """
    none = _seconds_to_send(box, 0)
    size, taken = 0, 0.0
    for size in TRIALS:
        taken = _seconds_to_send(box, size) - none
        if taken > CHANCE:
            break
    return size / max(taken, 1e-6)


def _seconds_to_send(box: Agent, size: int) -> float:
    data = os.urandom(size)
    began = time.monotonic()
    box.link.run("exec cat >/dev/null", data)
    return time.monotonic() - began


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
