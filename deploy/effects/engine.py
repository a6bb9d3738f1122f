"""The laptop's engine, by the docker SDK: is it there, build, inspect, save."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deploy.effects.settings import root
from deploy.errors import ImageError
from deploy.plan.image import LABEL

# What the Dockerfiles read: the build context that travels to a box, and the image's digest
ENVIRONMENT = ("images", ".dockerignore")
PARTS = (*ENVIRONMENT, "workload", "deploy/onbox")


OWN = "requirements.txt"  # in the build context that travels: the user's own packages


def context_files(device: str, parts: tuple[str, ...] = PARTS) -> list[Path]:
    """Every file that an image of ours is built from, relative to the clone, sorted."""
    found = [
        Path("Dockerfile.gpu" if device == "gpu" else "Dockerfile.cpu"),
        Path("Dockerfile.cpu"),
    ]
    for part in parts:
        path = root() / part
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        found += [each.relative_to(root()) for each in files if each.is_file()]
    return sorted({each for each in found if "__pycache__" not in each.parts})


def inputs_digest(device: str, packages: str = "", parts: tuple[str, ...] = PARTS) -> str:
    """The same for two trees that give the same image: over names, modes and contents.

    packages  the user's own requirements, "" without any
    parts     ENVIRONMENT for the image without the kit's own programs
    """
    digest = hashlib.sha256(packages.encode())
    for path in context_files(device, parts):
        content = (root() / path).read_bytes()
        executable = bool((root() / path).stat().st_mode & 0o100)
        digest.update(f"{path.as_posix()}\0{executable}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def context_tar(device: str, packages: str = "") -> bytes:
    """The build context as a tar.gz (some 100 KiB), with the user's own packages as OWN."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in context_files(device):
            archive.add(root() / path, path.as_posix(), recursive=False)
        if packages:
            member = tarfile.TarInfo(OWN)
            member.size = len(packages.encode())
            archive.addfile(member, io.BytesIO(packages.encode()))
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
    """{id, inputs, size, layers, architecture, told} of an image of this engine; id "" without one.

    told  what `docker image inspect` says
    """
    import docker

    try:
        image = docker.from_env().images.get(name)
    except docker.errors.DockerException:  # no such image, or no engine
        nothing: dict[str, Any] = {"size": 0, "layers": [], "architecture": "", "told": {}}
        return {"id": "", "inputs": "", **nothing}
    return described(image.attrs)


def described(told: Mapping[str, Any]) -> dict[str, Any]:
    """The same of what `docker image inspect` says here or on a box."""
    return {
        "id": told["Id"],
        "inputs": ((told.get("Config") or {}).get("Labels") or {}).get(LABEL, ""),
        "size": told["Size"],
        "layers": told["RootFS"].get("Layers") or [],
        "architecture": told.get("Architecture", ""),
        "told": told,
    }


def saves_by_layer() -> bool:
    """Whether `docker save` here names layers as `docker inspect` does: Docker's own store does, from
    25 on; the containerd image store names them by what they are compressed to."""
    import docker

    info = docker.from_env().info()
    containerd = any(
        "io.containerd.snapshotter" in str(pair) for pair in info["DriverStatus"] or []
    )
    return not containerd and int(str(info["ServerVersion"]).split(".")[0]) >= 25


def build_here(
    device: str, tag: str, inputs: str, tell: Callable[[str], None], packages: str, target: str
) -> None:
    """Build with the user's own settings and packages; `tell` gets the build's own words.

    target  of the Dockerfile; "" for the usual one
    """
    command = [sys.executable, str(root() / "images" / "build.py"), device, "--tag", tag]
    command += ["--label", f"{LABEL}={inputs}", *(["--target", target] if target else [])]
    with tempfile.TemporaryDirectory(prefix="gpubox-") as folder:
        if packages:
            own = Path(folder) / OWN
            own.write_text(packages, encoding="utf-8")
            command += ["--requirements", str(own)]
        building = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        assert building.stdout is not None
        for line in building.stdout:
            tell(line.rstrip())
    if building.wait() != 0:
        raise ImageError(f"{tag} could not be built here", "the reason stands in the lines above")
