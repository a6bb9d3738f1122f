"""The images of this box: what is said of one, and building one from a context that follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from typing import Any

from .activity import active
from .docker_runner import docker, last_line
from .refusal import Refusal

LABEL = "gpubox.inputs"


def build_image(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: unpack the context that follows and build from it with this box's own settings.

    environment  an image here that holds all but the kit's own programs, to build upon; or ""
    """
    with active("build " + request["tag"]), tempfile.TemporaryDirectory(prefix="gpubox-") as folder:
        with tarfile.open(fileobj=wire.input, mode="r|gz") as archive:
            archive.extractall(folder)
        command = [sys.executable, os.path.join(folder, "images", "build.py"), request["device"]]
        command += ["--tag", request["tag"], "--label", f"{LABEL}={request['inputs']}"]
        command += ["--env", request["environment"]] if request.get("environment") else []
        own = os.path.join(folder, "requirements.txt")  # the user's packages, where there are any
        command += ["--requirements", own] if os.path.exists(own) else []
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.PIPE, text=True
        )
        sys.stderr.write(done.stderr)
    if done.returncode != 0:
        raise Refusal(
            "ImageError",
            f"the build failed: {last_line(done.stderr)}",
            "fab ship sends one from here; docs/images.md",
        )
    return found(request["tag"])


def found(tag: str) -> dict[str, str]:
    """{id, inputs} of an image here; empty strings without one."""
    told = inspected(tag)
    labels = (told.get("Config") or {}).get("Labels") or {}
    return {"id": told.get("Id", ""), "inputs": labels.get(LABEL, "")}


def inspected(tag: str) -> dict[str, Any]:
    """What `docker image inspect` says; {} without one."""
    done = docker("image", "inspect", tag, seconds=30)
    return dict(json.loads(done.stdout)[0]) if done.returncode == 0 else {}
