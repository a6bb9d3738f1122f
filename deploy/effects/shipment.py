"""Reads an image from the laptop's engine as frames: the chosen layers alone, in compressed chunks."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
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
    image: str, layers: Collection[str], wanted: Mapping[str, int], told: Told
) -> Iterator[bytes]:
    """`docker save` as frames for the box's `load_layers` (deploy/onbox/shipment.py has the format).

    layers  all of the image's, as `docker inspect` lists them
    wanted  {layer: chunks to leave out} for those that travel
    told    called with the bytes of the image that are done with
    Unfit where an engine saves in another form, before the last frame.
    """
    saving = subprocess.Popen(
        ["docker", "save", image], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert saving.stdout is not None
    try:
        yield from _frames(saving.stdout, layers, wanted, told)
        if saving.wait() != 0:
            raise ImageError(f"{image}: docker save ended with {saving.returncode}", "fab doctor")
        yield _frame({"end": True}, b"")
    finally:
        saving.kill()
        saving.stdout.close()
        saving.wait()


def _frames(
    source: IO[bytes], layers: Collection[str], wanted: Mapping[str, int], told: Told
) -> Iterator[bytes]:
    left = set(wanted)
    with tarfile.open(fileobj=source, mode="r|", bufsize=1 << 20) as archive:
        for member in archive:
            layer = "sha256:" + member.name.removeprefix(BLOBS)
            if not member.isfile():
                continue
            content = archive.extractfile(member)
            assert content is not None
            if layer in wanted:
                left.discard(layer)
                yield from _chunks(content, layer, member.size, wanted[layer], told)
            elif layer not in layers:
                if member.size > SMALL:
                    raise Unfit(member.name)
                yield _frame({"file": member.name}, content.read())
            else:
                told(member.size)
    if left:
        raise Unfit(f"no blob for {', '.join(sorted(left))}")


def _chunks(content: IO[bytes], layer: str, size: int, skip: int, told: Told) -> Iterator[bytes]:
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
            waiting.append((head, pool.submit(zlib.compress, block, 1)))
            if len(waiting) > workers:
                head, packed = waiting.popleft()
                yield _frame(head, packed.result())
        while waiting:
            head, packed = waiting.popleft()
            yield _frame(head, packed.result())


def _frame(head: dict[str, Any], payload: bytes) -> bytes:
    return json.dumps({**head, "bytes": len(payload)}).encode() + b"\n" + payload
