"""The laptop's engine, by the docker SDK: is it there, build, inspect, save."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.effects.settings import root
from deploy.errors import ImageError
from deploy.plan.image import LABEL

# What the Dockerfiles read: the build context that travels to a box, and the image's digest
PARTS = ("images", "workload", "deploy/onbox", ".dockerignore")


def context_files(device: str) -> list[Path]:
    """Every file that an image of ours is built from, relative to the clone, sorted."""
    found = [Path(f"Dockerfile.{device}"), Path("Dockerfile.cpu")]
    for part in PARTS:
        path = root() / part
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        found += [each.relative_to(root()) for each in files if each.is_file()]
    return sorted({each for each in found if "__pycache__" not in each.parts})


def inputs_digest(device: str) -> str:
    """The same for two trees that give the same image: over names, modes and contents."""
    digest = hashlib.sha256()
    for path in context_files(device):
        content = (root() / path).read_bytes()
        executable = bool((root() / path).stat().st_mode & 0o100)
        digest.update(f"{path.as_posix()}\0{executable}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def context_tar(device: str) -> bytes:
    """The build context as a tar.gz (some 100 KiB)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in context_files(device):
            archive.add(root() / path, path.as_posix(), recursive=False)
    return packed.getvalue()


def laptop_engine() -> dict[str, str] | None:
    """{version, architecture} of the engine here; None where none answers."""
    import docker

    try:
        client = docker.from_env(timeout=10)
        version = client.version()
    except (docker.errors.DockerException, OSError):
        return None
    return {"version": str(version["Version"]), "architecture": str(version["Arch"])}


def image_here(name: str) -> dict[str, Any]:
    """{id, inputs, size, layers, architecture} of an image of this engine; id "" without one."""
    import docker

    try:
        image = docker.from_env().images.get(name)
    except docker.errors.DockerException:  # no such image, or no engine
        return {"id": "", "inputs": "", "size": 0, "layers": [], "architecture": ""}
    return {
        "id": image.id,
        "inputs": image.labels.get(LABEL, ""),
        "size": image.attrs["Size"],
        "layers": image.attrs["RootFS"].get("Layers") or [],
        "architecture": image.attrs.get("Architecture", ""),
    }


def build_here(device: str, tag: str, inputs: str) -> None:
    """Build with the user's own settings; the build's own words go to stderr."""
    command = [sys.executable, str(root() / "images" / "build.py"), device, "--tag", tag]
    done = subprocess.run(
        [*command, "--label", f"{LABEL}={inputs}"], stdin=subprocess.DEVNULL, stdout=sys.stderr
    )
    if done.returncode != 0:
        raise ImageError(f"{tag} could not be built here", "the reason stands in the lines above")


def saved(image: str) -> Iterator[bytes]:
    """The image as `docker save` writes it, in blocks."""
    import docker

    yield from docker.from_env(timeout=600).images.get(image).save(chunk_size=1 << 20, named=True)
