"""A TensorBoard or notebook as a service of compose.yaml, with one generated file over it."""

from __future__ import annotations

import json
import os
from typing import Any

from .compose import OVERRIDE, doubled, with_tags
from .docker_runner import docker, last_line
from .places import Places
from .publish import atomic_file, write_json
from .refusal import Refusal
from .view import jupyter_settings

PORTS = {"tensorboard": 6006, "notebook": 8888}  # inside the container
SETTINGS = "/run/gpubox-jupyter.json"


class DockerServer:
    """One server in a container; the engine chooses the port, on 127.0.0.1 of the box alone."""

    def __init__(self, places: Places, folder: str, shown: str, request: dict[str, Any]) -> None:
        self._folder, self._kind = folder, request["kind"]
        mounts = [(shown, "/output", self._kind == "tensorboard")]
        if self._kind == "notebook":
            settings = os.path.join(folder, "jupyter.json")
            write_json(settings, jupyter_settings(request["token"], 8888, "0.0.0.0", "/output"))
            mounts += [(settings, SETTINGS, True), (places.input, "/input", True)]
        with atomic_file(os.path.join(folder, "compose.yaml")) as file:
            file.write(request["compose"].encode())
        with atomic_file(os.path.join(folder, "view.json")) as file:
            file.write(compose_view(request, mounts, f"{os.getuid()}:{os.getgid()}").encode())
        done = docker(*_compose(folder), "up", "--detach", "--no-build", self._kind, seconds=300)
        if done.returncode != 0:
            down(folder)
            raise Refusal("EngineError", f"{self._kind}: {last_line(done.stderr)}", "fab doctor")
        self.port = self._published()

    def _published(self) -> int:
        done = docker(*_compose(self._folder), "port", self._kind, str(PORTS[self._kind]))
        address = done.stdout.strip()
        if not address.startswith("127.0.0.1:"):
            words = self.last_words()
            self.stop()
            raise Refusal("RunFailed", f"{self._kind} did not start: {words}", "")
        return int(address.rsplit(":", 1)[1])

    def ended(self) -> bool:
        done = docker(*_compose(self._folder), "ps", "--quiet", "--status", "running")
        return done.returncode == 0 and not done.stdout.strip()

    def last_words(self) -> str:
        tail = ["logs", "--no-log-prefix", "--no-color", "--tail", "5"]
        done = docker(*_compose(self._folder), *tail, self._kind)
        return last_line(done.stdout or done.stderr)

    def stop(self) -> None:
        down(self._folder)


def down(folder: str) -> None:
    docker(*_compose(folder), "down", "--timeout", "5", "--volumes")


def _compose(folder: str) -> list[str]:
    """One project a view: its folder's name, which holds our pid and no other's."""
    files = [os.path.join(folder, name) for name in ("compose.yaml", "view.json")]
    project = "gpubox-view-" + os.path.basename(folder).lower()
    return ["compose", "-p", project, "-f", files[0], "-f", files[1], "--profile", "tools"]


def compose_view(request: dict[str, Any], mounts: list[tuple[str, str, bool]], user: str) -> str:
    """PURE: the text of the file over compose.yaml: image, user, folders, a port of loopback."""
    kind = request["kind"]
    service: dict[str, Any] = {
        "image": request["image"],
        "pull_policy": "never",
        "restart": "no",
        "user": user,
        "command": doubled(_command(kind)),
        "labels": {"gpubox.view": kind},
        # the GPU image asks for a GPU unless it is told that none is needed
        "environment": {"HOME": "/tmp", "REQUIRE_GPU": "1" if request.get("gpus") else "0"},
        "ports": OVERRIDE + json.dumps([f"127.0.0.1::{PORTS[kind]}"]),
        "volumes": OVERRIDE + json.dumps([_bind(*each) for each in mounts]),
    }
    if request.get("gpus"):
        card = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [card]}}}
    return with_tags({"services": {kind: service}})


def _command(kind: str) -> list[str]:
    if kind == "tensorboard":
        return ["tensorboard", "--logdir", "/output", "--host", "0.0.0.0", "--port", "6006"]
    return ["jupyter", "lab", "--config", SETTINGS, "--allow-root"]


def _bind(source: str, target: str, read_only: bool) -> dict[str, Any]:
    return {
        "type": "bind",
        "source": source.replace("$", "$$"),
        "target": target,
        "read_only": read_only,
        "bind": {"create_host_path": False},
    }
