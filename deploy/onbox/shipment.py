"""Takes the layers of an image that this box lacks, keeps them over a lost link, loads them.

Frames on stdin: a line of JSON, then `bytes` of payload.
    {"layer": ID, "chunk": I}   a layer's chunk I, deflated
    {"layer": ID, "size": N}    that was all of it: N bytes
    {"file": NAME}              a small file of the saved image, as it is
    {"end": true, "ids": [ID]}  nothing more comes; what the image is called, by the engine's store
Chunks are kept below ~/.gpubox/layers, one file each, until the image is loaded.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import zlib
from typing import Any, BinaryIO

from .activity import active
from .docker_runner import docker, last_line
from .images import found, inspected
from .layers import image_frames, saved_image
from .locks import locked
from .places import own_folder
from .publish import atomic_file
from .refusal import Refusal

LAYER = re.compile(r"sha256:[0-9a-f]{64}")
FORGOTTEN = 7 * 24 * 3600  # s after which an unfinished layer is removed


def spool_folder() -> str:
    path = os.path.join(own_folder(), "layers")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def image_state(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: `images` (the layers of each image here), `spooled` {layer: chunks}, `architecture`,
    `containerd` (is that the engine's store), `told` (`docker image inspect` of the tag)."""
    ids = docker("image", "ls", "--quiet", "--no-trunc").stdout.split()
    form = "{{json .RootFS.Layers}}"
    told = docker("image", "inspect", "--format", form, *set(ids)).stdout if ids else ""
    return {
        "images": [json.loads(line) or [] for line in told.splitlines()],
        "spooled": spooled(spool_folder(), time.time()),
        "architecture": docker("version", "--format", "{{.Server.Arch}}").stdout.strip(),
        "containerd": keeps_in_containerd(),
        "told": inspected(request["tag"]),
        **found(request["tag"]),
    }


def save_layers(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb (bulk): this box's image as another box's `load_layers` takes it.

    wanted  {layer: chunks to leave out};  level, indexed  as of layers.image_frames
    """
    tag = request["tag"]
    told = inspected(tag)
    if not told:
        raise Refusal("ImageError", f"no image {tag} here", "fab ship without --from")
    image = {"id": told["Id"], "layers": told["RootFS"]["Layers"] or []}
    level, indexed = request["level"], request["indexed"]
    wire.start_bulk()
    with active("send " + tag), saved_image(tag, image, saves_by_layer(), own_folder()) as saved:
        for block in image_frames(
            tag, saved, image, request["wanted"], lambda _: None, level, indexed
        ):
            wire.frame(block)
    wire.frame(b"")
    return {"id": told["Id"]}


def saves_by_layer() -> bool:
    """Whether `docker save` names layers as `docker inspect` does: Docker's own store from 25 on."""
    version = docker("version", "--format", "{{.Server.Version}}").stdout.split(".")[0]
    return not keeps_in_containerd() and version.isdigit() and int(version) >= 25


def keeps_in_containerd() -> bool:
    """Whether the engine keeps its images in the containerd image store."""
    status = docker("info", "--format", "{{json .DriverStatus}}").stdout
    return "io.containerd.snapshotter" in status


def spooled(folder: str, now: float) -> dict[str, int]:
    """How many chunks of each layer lie here, without a gap; long forgotten ones are removed."""
    counts = {}
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not LAYER.fullmatch("sha256:" + name):
            continue
        if now - os.stat(path).st_mtime > FORGOTTEN:
            shutil.rmtree(path, ignore_errors=True)
            continue
        count = 0
        while os.path.exists(chunk_path(folder, "sha256:" + name, count)):
            count += 1
        counts["sha256:" + name] = count
    return counts


def chunk_path(folder: str, layer: str, number: int) -> str:
    return os.path.join(folder, layer.split(":")[1], f"{number:08d}")


def load_layers(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: take frames, then load; {id, inputs}, or `refused` (words) where the engine wants more."""
    folder = spool_folder()
    with active("load " + request["tag"]):
        with locked(os.path.join(folder, "lock"), "take an image", wait=60):
            layers, files, ids = _receive(wire.input, folder)
            refused = _load(folder, layers, files)
            if refused:
                if keeps_in_containerd():
                    docker("image", "rm", request["tag"])  # it named it before it missed a layer
                return {"id": "", "inputs": "", "refused": refused}
            for layer in layers:
                shutil.rmtree(os.path.join(folder, layer.split(":")[1]), ignore_errors=True)
    image = found(request["tag"])
    if image["id"] not in ids:
        raise Refusal(
            "VerifyError",
            f"{request['tag']}: loaded as {image['id'][:19]}, sent as {ids[0][:19]}",
            "the engines differ in how they keep images: fab build on the box",
        )
    return {**image, "refused": ""}


def _receive(source: BinaryIO, folder: str) -> tuple[dict[str, int], dict[str, bytes], list[str]]:
    """Keep every chunk; returns {layer: its size}, the small files and the image's ids."""
    layers: dict[str, int] = {}
    files: dict[str, bytes] = {}
    while True:
        head = _head(source)
        if head.get("end"):
            return layers, files, list(head["ids"])
        payload = _exactly(source, int(head["bytes"]))
        if "file" in head:
            files[head["file"]] = payload
        elif "layer" in head:
            if not LAYER.fullmatch(head["layer"]):
                raise Refusal("VerifyError", f"{head['layer']!r} is no layer", "")
            if "size" in head:
                layers[head["layer"]] = int(head["size"])
            if "chunk" in head:
                _keep(chunk_path(folder, head["layer"], int(head["chunk"])), payload)


def _head(source: BinaryIO) -> dict[str, Any]:
    line = source.readline()
    if not line.endswith(b"\n"):
        raise Refusal("TransferError", "the image broke off", "the same command goes on")
    return dict(json.loads(line))


def _exactly(source: BinaryIO, count: int) -> bytes:
    data = source.read(count)
    if len(data) != count:
        raise Refusal("TransferError", "the image broke off", "the same command goes on")
    return data


def _keep(path: str, payload: bytes) -> None:
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with atomic_file(path) as file:
            file.write(payload)
    except OSError as no:
        if no.errno in (errno.ENOSPC, errno.EDQUOT):
            where = os.path.dirname(os.path.dirname(path))
            raise Refusal(
                "NoSpace", f"{where}: no room for the image's layers", "free some there"
            ) from no
        raise


class LayerReader:
    """A layer out of its chunks; VerifyError at the end unless it is the layer of its name."""

    def __init__(self, folder: str, layer: str) -> None:
        self._folder, self._layer = folder, layer
        self._next, self._block = 0, io.BytesIO()
        self._digest = hashlib.sha256()

    def read(self, count: int) -> bytes:
        """`count` bytes, fewer only at the layer's end."""
        data = self._block.read(count)
        while len(data) < count and self._open_next():
            data += self._block.read(count - len(data))
        return data

    def _open_next(self) -> bool:
        path = chunk_path(self._folder, self._layer, self._next)
        try:
            with open(path, "rb") as file:
                block = zlib.decompress(file.read())
        except (OSError, zlib.error):
            self.check()
            return False
        self._next += 1
        self._digest.update(block)
        self._block = io.BytesIO(block)
        return True

    def check(self) -> None:
        if "sha256:" + self._digest.hexdigest() != self._layer:
            shutil.rmtree(os.path.dirname(chunk_path(self._folder, self._layer, 0)))
            raise Refusal(
                "VerifyError",
                f"layer {self._layer[:19]} arrived damaged and was removed",
                "the same command sends it again",
            )


def _load(folder: str, layers: dict[str, int], files: dict[str, bytes]) -> str:
    """Give `docker load` the image without the layers that are here; "" or the engine's refusal."""
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            ["docker", "load", "--quiet"], stdin=subprocess.PIPE, stdout=said, stderr=said
        )
        assert child.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), child.stdin:
                _write_tar(child.stdin, folder, layers, files)
        except BaseException:
            child.kill()
            child.wait()
            raise
        code = child.wait()
        said.seek(0)
        words = said.read().decode(errors="replace")
    return (last_line(words) or f"docker load ended with {code}") if code else ""


def _write_tar(target: Any, folder: str, layers: dict[str, int], files: dict[str, bytes]) -> None:
    with tarfile.open(fileobj=target, mode="w|", bufsize=1 << 20) as archive:
        for layer, size in layers.items():
            member = tarfile.TarInfo("blobs/sha256/" + layer.split(":")[1])
            member.size = size
            reader = LayerReader(folder, layer)
            archive.addfile(member, reader)  # type: ignore[arg-type]
            reader.check()
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
