"""Reads an image from the laptop's engine as frames: the chosen layers alone, in compressed chunks."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

from deploy.errors import ImageError
from deploy.plan.shipment import CHUNK

BLOBS = "blobs/sha256/"
SMALL = (
    4 << 20
)  # bytes; manifests and configs are far smaller, a layer that is no blob of ours is not
Told = Callable[[int], None]


class Unfit(Exception):
    """This engine's `docker save` does not name layers by what `docker inspect` calls them."""


def saved_frames(
    tag: str, image: Mapping[str, Any], wanted: Mapping[str, int], told: Told, level: int = 1
) -> Iterator[bytes]:
    """`docker save` as frames for the box's `load_layers` (deploy/onbox/shipment.py has the format).

    image   {id, layers} as `docker inspect` gives them
    wanted  {layer: chunks to leave out} for those that travel
    told    called with the bytes of the image that are done with
    level   zlib's, 0 to 9
    Unfit where an engine saves in another form, before the last frame.
    """
    saving = subprocess.Popen(
        ["docker", "save", tag], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert saving.stdout is not None
    try:
        yield from _frames(saving.stdout, image, wanted, told, level)
        yield _frame({"file": "manifest.json"}, _manifest(tag, image))
        yield _frame({"end": True}, b"")
    finally:
        saving.kill()  # what was wanted has come: the rest is not waited for
        saving.stdout.close()
        saving.wait()


def _frames(
    source: IO[bytes],
    image: Mapping[str, Any],
    wanted: Mapping[str, int],
    told: Told,
    level: int,
) -> Iterator[bytes]:
    """The wanted layers and the image's config, until all have come."""
    left = {*wanted, image["id"]}
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=1 << 20) as archive:
            for member in archive:
                digest = "sha256:" + member.name.removeprefix(BLOBS)
                content = archive.extractfile(member)
                if content is None:
                    continue
                if digest in wanted:
                    yield from _chunks(content, digest, member.size, wanted[digest], told, level)
                elif digest == image["id"]:
                    yield _frame({"file": member.name}, content.read())
                elif digest in image["layers"]:
                    told(member.size)
                left.discard(digest)
                if not left:
                    return
    except tarfile.ReadError as no:
        raise ImageError(f"docker save broke off: {no}", "fab doctor --host local") from no
    raise Unfit(f"no blob for {', '.join(sorted(left))}")


def _manifest(tag: str, image: Mapping[str, Any]) -> bytes:
    """What `docker load` reads first; the layers that stay behind are named all the same."""
    name = tag if ":" in tag.rsplit("/", 1)[-1] else tag + ":latest"
    blobs = [BLOBS + layer.removeprefix("sha256:") for layer in image["layers"]]
    config = BLOBS + image["id"].removeprefix("sha256:")
    return json.dumps([{"Config": config, "RepoTags": [name], "Layers": blobs}]).encode()


def _chunks(
    content: IO[bytes], layer: str, size: int, skip: int, told: Told, level: int
) -> Iterator[bytes]:
    """The layer's chunks from `skip` on, compressed on all processors, in order."""
    yield _frame({"layer": layer, "size": size}, b"")
    waiting: deque[tuple[dict[str, Any], Future[bytes]]] = deque()
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        for number, start in enumerate(range(0, size, CHUNK)):
            block = content.read(min(CHUNK, size - start))
            told(len(block))
            if number < skip:
                continue
            head = {"layer": layer, "size": size, "chunk": number}
            waiting.append((head, pool.submit(zlib.compress, block, level)))
            if len(waiting) > workers:
                head, packed = waiting.popleft()
                yield _frame(head, packed.result())
        while waiting:
            head, packed = waiting.popleft()
            yield _frame(head, packed.result())


def _frame(head: dict[str, Any], payload: bytes) -> bytes:
    return json.dumps({**head, "bytes": len(payload)}).encode() + b"\n" + payload
