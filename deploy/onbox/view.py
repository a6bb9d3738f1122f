"""Keeps a TensorBoard or a notebook up on 127.0.0.1 for as long as the laptop holds on to it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import tempfile
import time
from typing import Any, Iterator, Protocol

from .locks import process_start
from .places import Places, find_places, own_folder
from .publish import write_json
from .refusal import Refusal
from .runs import pick_run, read_run, run_folder

SILENCE = 60.0  # seconds without a byte from the laptop, which sends one every 10
START_SECONDS = 120.0
NOTEBOOK = "gpubox/notebook:latest"
ANNOUNCED = "jupyter"  # under ~/.gpubox: where the keeper looks for notebook servers in use


class Server(Protocol):
    """A server that was started: `port` on 127.0.0.1 of this box."""

    port: int

    def ended(self) -> bool: ...
    def last_words(self) -> str: ...
    def stop(self) -> None: ...


def view(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: start it, tell the port (event `ready`), stay while stdin is held, then stop it.

    The request names `kind` (tensorboard, notebook), `run` (an id, "last", or "" for all of
    them), for a notebook `token`; `compose` (the text of compose.yaml) and `image` for the docker
    runner; `python`, `device`, `requirements` for the process runner, as a run has them.
    """
    places = find_places(request)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    sweep()
    with private_folder() as folder:
        server = start(places, folder, request, wire)
        try:
            wait_until_it_answers(server, request["kind"])
            with announced(request, server.port):
                wire.event(ready=server.port)
                hold(server, wire.input.fileno(), request["kind"])
        finally:
            server.stop()
    return {"ended": True}


def _end(number: int, _: Any) -> None:
    raise SystemExit(128 + number)


def start(places: Places, folder: str, request: dict[str, Any], wire: Any) -> Server:
    """By the same runner as the run whose files are shown, else as the newest one."""
    run = run_of(places, request)
    shown = folder_shown(places, request, run)
    runner = run.get("runner") or request.get("runner") or "auto"
    if runner == "process" or (runner == "auto" and shutil.which("docker") is None):
        from .view_process import ProcessServer

        return ProcessServer(places, folder, shown, {**request, **run}, wire)
    from .view_docker import DockerServer

    return DockerServer(places, folder, shown, {**request, "image": image_of(run, request)})


def folder_shown(places: Places, request: dict[str, Any], run: dict[str, Any]) -> str:
    """The output of the run that was named; else all runs, or a folder for notebooks."""
    if request.get("run"):
        return os.path.join(run_folder(places, run["id"]), "output")
    if request["kind"] == "tensorboard":
        return places.runs
    shown = os.path.join(places.runs, "notebooks")
    os.makedirs(shown, mode=0o700, exist_ok=True)
    return shown


def run_of(places: Places, request: dict[str, Any]) -> dict[str, Any]:
    """run.json of the run that is named, else of the newest; {} where none is there yet."""
    name = request.get("run", "")
    try:
        return read_run(run_folder(places, pick_run(places, name)))
    except Refusal:
        if name:
            raise
        return {}


def image_of(run: dict[str, Any], request: dict[str, Any]) -> str:
    """The run's own image, which has TensorBoard; a notebook's is another one, with Jupyter."""
    from .docker_runner import docker

    if request["kind"] == "notebook" and not request.get("image"):
        done = docker("image", "inspect", "--format", "{{.Id}}", NOTEBOOK)
        if done.returncode != 0:
            hint = "fab ship --device notebook"
            raise Refusal("ImageError", f"no image {NOTEBOOK} on this box", hint)
        return done.stdout.strip()
    image = request.get("image") or run.get("image") or ""
    if not image:
        raise Refusal("ImageError", "no image on this box yet", "fab deploy, or fab ship")
    return str(image)


@contextlib.contextmanager
def private_folder() -> Iterator[str]:
    """~/.gpubox/views/PID-…, mode 0700, gone at the end."""
    parent = os.path.join(own_folder(), "views")
    os.makedirs(parent, mode=0o700, exist_ok=True)
    me = os.getpid()
    folder = tempfile.mkdtemp(prefix=f"{me}-{process_start(me)}-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Stop what a view left behind that was killed before it could."""
    parent = os.path.join(own_folder(), "views")
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(parent):
            pid, started = (name.split("-") + ["", ""])[:2]
            if pid.isdigit() and process_start(int(pid)) == started:
                continue
            folder = os.path.join(parent, name)
            if os.path.exists(os.path.join(folder, "compose.yaml")):
                from .view_docker import down

                down(folder)
            shutil.rmtree(folder, ignore_errors=True)


def wait_until_it_answers(server: Server, kind: str) -> None:
    """Until HTTP is spoken on its port; Refusal with its last words where it ends before."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.ended():
            raise Refusal("RunFailed", f"{kind} did not start: {server.last_words()}", "")
        with contextlib.suppress(OSError):
            with socket.create_connection(("127.0.0.1", server.port), timeout=5) as line:
                line.sendall(b"GET /api HTTP/1.0\r\n\r\n")
                if line.recv(5) == b"HTTP/":
                    return
        time.sleep(0.1)
    raise Refusal(
        "RunFailed", f"{kind} did not answer in {START_SECONDS:.0f} s: {server.last_words()}", ""
    )


@contextlib.contextmanager
def announced(request: dict[str, Any], port: int) -> Iterator[None]:
    """A notebook's address and token for the keeper (0600): a kernel at work is no idle box."""
    if request["kind"] != "notebook":
        yield
        return
    folder = os.path.join(own_folder(), ANNOUNCED)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, f"{os.getpid()}.json")
    server = {"url": f"http://127.0.0.1:{port}/", "token": request["token"], "pid": os.getpid()}
    write_json(path, {"schema": 1, **server})
    try:
        yield
    finally:
        os.unlink(path)


def hold(server: Server, stdin: int, kind: str) -> None:
    """Return when the laptop lets go (end of stdin) or is not heard for SILENCE seconds."""
    heard = time.monotonic()
    while time.monotonic() - heard < SILENCE:
        readable, _, _ = select.select([stdin], [], [], 1.0)
        if readable:
            if not os.read(stdin, 4096):
                return
            heard = time.monotonic()
        if server.ended():
            raise Refusal("RunFailed", f"{kind} ended: {server.last_words()}", "")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def jupyter_settings(token: str, port: int, address: str, root: str) -> dict[str, Any]:
    """Jupyter's config file: the token lies in it, so that it is in no argv and no environment."""
    server = {
        "ip": address,
        "port": port,
        "port_retries": 0,
        "open_browser": False,
        "root_dir": root,
        "allow_remote_access": True,  # the Host header names the laptop's port
    }
    return {"IdentityProvider": {"token": token}, "ServerApp": server}
