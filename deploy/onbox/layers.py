"""Reads an image from the engine of this machine as frames: the chosen layers, in compressed chunks.

Runs at both ends: on the laptop for `fab ship`, on a box for `fab ship --from BOX`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any, Callable, Generator, Iterator, Mapping, NamedTuple, cast

from .imagefiles import BLOBS, CHUNK, blob_path, index_files, manifest_file, next_level
from .refusal import Refusal
from .tars import Unzstd

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # how these begin
Told = Callable[[int], None]


class Part(NamedTuple):
    """A piece of a saved image, to be read once and in its turn.

    digest  of a layer as `docker inspect` calls it (of its tar, uncompressed), or of the config
    size    bytes of `content`; None where that is known only when it has been read
    """

    digest: str
    size: int | None
    content: IO[bytes]


class Saved(NamedTuple):
    """An image that is being saved: the digest of its config, and its parts."""

    config: str
    parts: Iterator[Part]


@contextmanager
def saved_image(
    tag: str, image: Mapping[str, Any], by_layer: bool, scratch: str
) -> Iterator[Saved]:
    """`docker save`: read as it comes where it names layers as `docker inspect` does; else, as
    from the containerd image store and engines before 25, by way of a file in `scratch`."""
    saving = subprocess.Popen(
        ["docker", "save", tag], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert saving.stdout is not None
    try:
        if by_layer:
            yield Saved(image["id"], _as_it_comes(saving.stdout, image))
        else:
            with tempfile.TemporaryFile(dir=scratch) as spool:
                shutil.copyfileobj(saving.stdout, spool, 1 << 20)
                spool.seek(0)
                yield _from_file(spool, image)
    except tarfile.ReadError as no:
        raise Refusal(
            "ImageError", f"docker save broke off: {no}", "fab doctor --host local"
        ) from no
    finally:
        saving.kill()  # what was wanted has come: the rest is not waited for
        saving.stdout.close()
        saving.wait()


def _as_it_comes(source: IO[bytes], image: Mapping[str, Any]) -> Iterator[Part]:
    ours = {*image["layers"], image["id"]}
    with tarfile.open(fileobj=source, mode="r|", bufsize=1 << 20) as archive:
        for member in archive:
            digest = "sha256:" + member.name[len(BLOBS) :]
            content = archive.extractfile(member)
            if content is not None and digest in ours:
                yield Part(digest, member.size, content)


def _from_file(spool: IO[bytes], image: Mapping[str, Any]) -> Saved:
    archive = tarfile.open(fileobj=spool, mode="r:")  # noqa: SIM115  as long as the file is
    [listed, *_] = json.load(_member(archive, "manifest.json"))
    config = _member(archive, listed["Config"]).read()
    digest = "sha256:" + hashlib.sha256(config).hexdigest()

    def parts() -> Iterator[Part]:
        yield Part(digest, len(config), _member(archive, listed["Config"]))
        for layer, name in zip(image["layers"], listed["Layers"]):
            with _uncompressed(_member(archive, name), name) as content:
                yield Part(layer, None, content)

    return Saved(digest, parts())


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    try:
        content = archive.extractfile(name)
    except KeyError:
        content = None
    if content is None:
        raise Refusal(
            "ImageError", f"docker save wrote no {name}", "docker save IMAGE | ssh BOX docker load"
        )
    return content


@contextmanager
def _uncompressed(content: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """The layer's tar, whatever its store keeps it compressed by."""
    begins = content.read(4)
    content.seek(0)
    if begins[:2] == GZIP:
        yield cast(IO[bytes], gzip.GzipFile(fileobj=content))
    elif begins == ZSTD:
        if not shutil.which("zstd"):
            raise Refusal(
                "ImageError",
                f"{name[:26]}: a layer compressed by zstd, and no zstd program here",
                "install zstd here, or docker save IMAGE | ssh BOX docker load",
            )
        program = Unzstd(cast(Any, content))
        try:
            yield program.stdout
        finally:
            program.stop(let_go=True)
    else:
        yield content


def image_frames(
    tag: str,
    saved: Saved,
    image: Mapping[str, Any],
    wanted: Mapping[str, int],
    told: Told,
    level: int = 1,
    indexed: bool = False,
) -> Iterator[bytes]:
    """The image as frames for the box's `load_layers` (deploy/onbox/shipment.py has the format).

    image    {layers} as `docker inspect` gives them
    wanted   {layer: chunks to leave out} for those that travel
    told     called with the bytes of the image that are done with
    level    zlib's for the first chunks, 0 or 1
    indexed  for the containerd image store, which wants the sizes of all layers: the whole is read
    """
    layers = image["layers"]
    left = {*(layers if indexed else wanted), saved.config}
    sizes: dict[str, int] = {}
    config = b""
    for part in saved.parts:
        if part.digest in left and part.digest in wanted:
            sizes[part.digest] = yield from _chunks(part, wanted[part.digest], told, level)
        elif part.digest == saved.config:
            config = part.content.read()
        elif part.digest in layers:
            sizes[part.digest] = _size(part) if indexed else part.size or 0
            told(sizes[part.digest])
        left.discard(part.digest)
        if not left:
            break
    if left:
        raise Refusal(
            "ImageError",
            f"{tag}: docker save wrote no {', '.join(sorted(left))[:90]}",
            "fab doctor",
        )
    ids = [saved.config]
    files = {blob_path(saved.config): config}
    files["manifest.json"] = manifest_file(tag, saved.config, layers)
    if indexed:
        manifest, more = index_files(tag, saved.config, len(config), layers, sizes)
        files.update(more)
        ids.append(manifest)
    for name, content in files.items():
        yield _frame({"file": name}, content)
    yield _frame({"end": True, "ids": ids}, b"")


def _size(part: Part) -> int:
    if part.size is not None:
        return part.size
    size = 0
    while block := part.content.read(1 << 20):
        size += len(block)
    return size


def _chunks(part: Part, skip: int, told: Told, level: int) -> Generator[bytes, None, int]:
    """The layer's chunks from `skip` on, compressed on all processors, in order; returns its size.

    level  to begin with; from then on it follows what the line is seen to take
    """
    waiting: deque[tuple[dict[str, Any], int, Future[bytes]]] = deque()
    workers = os.cpu_count() or 1
    whole = {} if part.size is None else {"of": part.size}
    number = size = sent = 0

    def send_next() -> Generator[bytes, None, None]:
        nonlocal level, sent
        head, by, packed = waiting.popleft()
        began = time.monotonic()
        frame = _frame(head, packed.result())
        ready = time.monotonic()
        yield frame
        if sent and by == level:  # the first had nothing to go on while it was deflated
            level = next_level(by, len(frame), ready - began, time.monotonic() - ready)
        sent += 1

    with ThreadPoolExecutor(workers) as pool:
        while block := _block(part.content):
            told(len(block))
            size += len(block)
            if number >= skip:
                head = {"layer": part.digest, "chunk": number, **whole}
                waiting.append((head, level, pool.submit(zlib.compress, block, level)))
            number += 1
            if len(waiting) > workers:
                yield from send_next()
        while waiting:
            yield from send_next()
    yield _frame({"layer": part.digest, "size": size}, b"")
    return size


def _block(content: IO[bytes]) -> bytes:
    """CHUNK bytes, fewer only at the end: gzip's reader may give less at a time."""
    block = content.read(CHUNK)
    while block and len(block) < CHUNK and (more := content.read(CHUNK - len(block))):
        block += more
    return block


def _frame(head: dict[str, Any], payload: bytes) -> bytes:
    return json.dumps({**head, "bytes": len(payload)}).encode() + b"\n" + payload
