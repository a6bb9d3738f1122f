"""Takes the layers of an image that this box lacks, keeps them over a lost link, loads them.

Frames on stdin: a line of JSON, then `bytes` of payload.
    {"layer": ID, "chunk": I}   a layer's chunk I, deflated; with "of": N where the layer's size is known
    {"layer": ID, "size": N}    that was all of it: N bytes
    {"file": NAME}              a small file of the saved image, as it is
    {"end": true, "ids": [ID]}  nothing more comes; what the image is called, by the engine's store
Chunks are kept below ~/.gpubox/layers, one file each, until the image is loaded; the engine gets them
while others still arrive.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from typing import Any, BinaryIO

from .activity import active
from .docker_runner import docker
from .images import found, inspected
from .layers import image_frames, saved_image
from .loading import Arriving, chunk_path, loading
from .locks import locked
from .places import own_folder
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


def load_layers(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: take frames and load them; {id, inputs}, or `refused` (words) where the engine wants more."""
    folder = spool_folder()
    arriving = Arriving(folder)
    with active("load " + request["tag"]):
        with locked(os.path.join(folder, "lock"), "take an image", wait=60):
            with loading(arriving) as said:
                ids = _receive(wire.input, arriving)
            if said:
                if keeps_in_containerd():
                    docker("image", "rm", request["tag"])  # it named it before it missed a layer
                return {"id": "", "inputs": "", "refused": said[0]}
            for layer in arriving.sizes:
                shutil.rmtree(os.path.join(folder, layer.split(":")[1]), ignore_errors=True)
    image = found(request["tag"])
    if image["id"] not in ids:
        raise Refusal(
            "VerifyError",
            f"{request['tag']}: loaded as {image['id'][:19]}, sent as {ids[0][:19]}",
            "the engines differ in how they keep images: fab build on the box",
        )
    return {**image, "refused": ""}


def _receive(source: BinaryIO, arriving: Arriving) -> list[str]:
    """Keep every chunk, and tell of it; returns the image's ids."""
    while True:
        head = _head(source)
        if head.get("end"):
            arriving.end()
            return list(head["ids"])
        payload = _exactly(source, int(head["bytes"]))
        if "file" in head:
            arriving.files[head["file"]] = payload
        elif "layer" in head:
            if not LAYER.fullmatch(head["layer"]):
                raise Refusal("VerifyError", f"{head['layer']!r} is no layer", "")
            if "size" in head:
                arriving.whole(head["layer"], int(head["size"]))
            if "chunk" in head:
                _keep(chunk_path(arriving.folder, head["layer"], int(head["chunk"])), payload)
                arriving.chunk(head["layer"], int(head["chunk"]), head.get("of"))


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
    """Not synced: a chunk that a power cut spoils is found by its layer's digest, and sent again."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path + ".part", "wb") as file:
            file.write(payload)
        os.replace(path + ".part", path)
    except OSError as no:
        if no.errno in (errno.ENOSPC, errno.EDQUOT):
            where = os.path.dirname(os.path.dirname(path))
            raise Refusal(
                "NoSpace", f"{where}: no room for the image's layers", "free some there"
            ) from no
        raise
