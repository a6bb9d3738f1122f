"""Takes an image from the laptop: as a saved stream, or as a build context to build it from."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from typing import Any

from .activity import active
from .docker_runner import docker, last_line
from .refusal import Refusal

LABEL = "gpubox.inputs"


def load_image(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: give the rest of the input to `docker load`; the id that the tag then has."""
    with active("load " + request["tag"]), tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            ["docker", "load", "--quiet"], stdin=subprocess.PIPE, stdout=said, stderr=said
        )
        assert child.stdin is not None
        # what the request's line left in the buffer belongs to the image: no bare file descriptor
        with contextlib.suppress(BrokenPipeError), child.stdin:
            shutil.copyfileobj(wire.input, child.stdin, 1 << 20)
        code = child.wait()
        said.seek(0)
        words = said.read().decode(errors="replace")
    if code != 0:
        raise Refusal("ImageError", f"docker load: {last_line(words)}", "fab doctor")
    return found(request["tag"])


def build_image(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: unpack the context that follows and build from it with this box's own settings."""
    with active("build " + request["tag"]), tempfile.TemporaryDirectory(prefix="gpubox-") as folder:
        with tarfile.open(fileobj=wire.input, mode="r|gz") as archive:
            archive.extractall(folder)
        command = [sys.executable, os.path.join(folder, "images", "build.py"), request["device"]]
        command += ["--tag", request["tag"], "--label", f"{LABEL}={request['inputs']}"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.PIPE, text=True
        )
        sys.stderr.write(done.stderr)
    if done.returncode != 0:
        raise Refusal(
            "ImageError",
            f"the build failed: {last_line(done.stderr)}",
            "fab doctor; docs/images.md",
        )
    return found(request["tag"])


def found(tag: str) -> dict[str, str]:
    """{id, inputs} of an image here; empty strings without one."""
    form = '{{.Id}} {{index .Config.Labels "' + LABEL + '"}}'
    done = docker("image", "inspect", "--format", form, tag, seconds=30)
    image, _, inputs = done.stdout.strip().partition(" ") if done.returncode == 0 else ("", "", "")
    return {"id": image, "inputs": "" if inputs == "<no value>" else inputs}
