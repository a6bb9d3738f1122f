"""The container engine in depth: whose it is, its disk, and whether it truly gives a GPU to a container."""

from __future__ import annotations

import grp
import io
import json
import os
import pwd
import shutil
import subprocess
import tarfile
from typing import Any

from .disks import disk
from .facts import engine, output

EMPTY, NOTHING = "gpubox-doctor:empty", "/nothing"


def engine_in_depth(images: list[str]) -> dict[str, Any]:
    """facts.engine() with `group`, the engine's `disk`, `gpu_try` and `image`.

    `images`: names of our GPU images, the first of which that is on the box is asked whether
    TensorFlow in it sees the GPU.
    """
    found = {**engine(), "group": docker_group()}
    if found["answers"]:
        root = (output("docker", "info", "--format", "{{.DockerRootDir}}") or "").strip()
        found["disk"] = disk(root) if root and os.path.isdir(root) else None
        found["gpu_try"] = try_gpu()
        found["image"] = ask_image(images)
    return found


def docker_group() -> str:
    """ "member", "after a new login" (added since this session began), "no", or "none" (no group)."""
    try:
        group = grp.getgrnam("docker")
    except KeyError:
        return "none"
    if group.gr_gid in os.getgroups() or os.getuid() == 0:
        return "member"
    name = pwd.getpwuid(os.getuid()).pw_name
    return "after a new login" if name in group.gr_mem else "no"


def try_gpu() -> dict[str, Any]:
    """Start a container with all GPUs from an empty image: nothing is pulled, nothing is left.

    `given` is None where the engine fails for a reason that need not be the GPU's.
    """
    if not _import_empty():
        return {"given": None, "said": "the engine refused an empty image to try with"}
    command = ["docker", "run", "--rm", "--network", "none", "--gpus", "all", EMPTY, NOTHING]
    code, said = _run(command)
    _run(["docker", "image", "rm", EMPTY])
    return {"given": given(code, said), "said": said}


def given(code: int, said: str) -> bool | None:
    """The program of the trial is not there: an engine that complains of just that has given the
    GPUs before; one that lacks the toolkit or whose driver fails says so in words that are known."""
    if code == 127 and NOTHING in said and "no such file" in said:
        return True
    known = ("could not select device driver", "nvidia-container-cli: initialization", "nvml error")
    return False if any(each in said for each in known) else None


def _import_empty() -> bool:
    """An image of a few empty folders: what the toolkit mounts the driver's files into."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("etc", "usr", "usr/bin", "usr/lib", "usr/lib/x86_64-linux-gnu", "usr/lib64"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
    return _run(["docker", "import", "-", EMPTY], packed.getvalue())[0] == 0


def ask_image(names: list[str]) -> dict[str, Any]:
    """What the check in our own GPU image says: {name, sees_gpu, report}; name "" without an image."""
    present = [name for name in names if output("docker", "image", "inspect", name) is not None]
    if not present:
        return {"name": "", "sees_gpu": None, "report": {}}
    command = ["docker", "run", "--rm", "--network", "none", "--gpus", "all"]
    code, said = _run([*command, present[0], "gpu-check", "--json"], seconds=90)
    report: dict[str, Any] = {}
    for line in said.splitlines():
        if line.startswith("{"):
            report = json.loads(line)
    return {"name": present[0], "sees_gpu": code == 0, "report": report, "said": said}


def _run(command: list[str], data: bytes = b"", seconds: float = 30) -> tuple[int, str]:
    """Exit code (-1: not there or too slow) and the last line that it said, stdout before stderr."""
    if shutil.which(command[0]) is None:
        return -1, "no " + command[0]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as no:
        return -1, str(no)
    text = (done.stdout + done.stderr).decode(errors="replace").strip()
    return done.returncode, text[-2000:]
