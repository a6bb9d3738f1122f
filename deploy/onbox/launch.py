"""Makes runs, starts them detached, and waits for the first step of one."""

from __future__ import annotations

import base64
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from typing import Any, Sequence

from .deploylock import release_early
from .docker_runner import image_id
from .facts import engine, in_container
from .leases import cards
from .locks import locked
from .places import Places, find_places
from .publish import atomic_file, publish_folder, write_json
from .queueing import parse_gpus
from .refusal import Refusal
from .runs import ID, box_identity, pick_run, run_folder
from .seed import seed_from_run
from .starts import refuse_while_stopping
from .waiting import wait_for_first_step

# What a request says about a run, and run.json keeps
ASKED = (
    *("id", "command", "data", "image", "commit", "clean", "fingerprint", "box", "gpus"),
    *(
        "shm_size",
        "stop_grace",
        "python",
        "needs",
        "requirements",
        "packages",
        "service",
        "memory",
        "price_per_hour",
    ),
    *("currency", "provider", "origin", "worker"),
)


def launch(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: make a run, start it, and (`wait`) come back with its first step or its end."""
    refuse_while_stopping()
    places = find_places(request)
    with locked(os.path.join(places.home, "launch.lock"), "launch", wait=60):
        run_id = create_run(places, request)
    wire.event(created=run_id)
    start_run(places, run_id)
    release_early(request)
    if not request.get("wait"):
        return {"id": run_id, "folder": run_folder(places, run_id)}
    return wait_for_first_step(places, run_id, wire)


def create_run(places: Places, ask: dict[str, Any]) -> str:
    """The run's folder, published by one rename; asking again for the same id changes nothing."""
    run_id = str(ask["id"])
    if not ID.fullmatch(run_id):
        raise Refusal("UsageError", f"{run_id!r} is no run id", "")
    folder = os.path.join(places.runs, run_id)
    if os.path.isfile(os.path.join(folder, "run.json")):
        return run_id
    run = describe(places, ask)
    new = os.path.join(places.runs, ".new-" + run_id)
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(os.path.join(new, "logs"), mode=0o700)
    os.chmod(new, 0o700)
    origin = ask.get("origin") or {}
    if origin.get("run"):
        run["origin"] = {**origin, **seed_from_run(places, run_id, origin["run"], origin["step"])}
    seed = os.path.join(places.runs, ".seed-" + run_id)
    if os.path.isdir(seed):
        os.rename(seed, os.path.join(new, "output"))
    os.makedirs(os.path.join(new, "output"), mode=0o700, exist_ok=True)
    _write_files(new, ask)
    now = time.time()
    state = {"state": "created", "since": now, "history": [{"state": "created", "at": now}]}
    write_json(os.path.join(new, "state.json"), {"schema": 1, **state})
    write_json(os.path.join(new, "run.json"), run)
    publish_folder(new, folder)
    return run_id


def describe(places: Places, ask: dict[str, Any]) -> dict[str, Any]:
    """run.json: what was asked, and what this box makes of it; Refusal where that can't be."""
    run = {key: ask.get(key) for key in ASKED}
    run.update(schema=1, created=time.time(), identity=box_identity(places))
    run["places"] = dict(zip(("data", "input", "runs", "home"), places))
    run["runner"] = choose_runner(ask.get("runner") or "auto")
    run["device"] = choose_device(ask.get("device") or "auto", str(ask.get("gpus", "all")))
    if not run.get("service"):
        run["service"] = "gpu-train" if run["device"] == "gpu" else "cpu-train"
    if run["runner"] == "docker":
        run["image"] = image_id(run["image"] or "gpubox/{device}:latest".format(**run))
    return run


def choose_runner(asked: str) -> str:
    """docker where an engine answers; process where the box is itself a container without one."""
    if asked in ("docker", "process"):
        return asked
    found = engine()
    if found["answers"]:
        return "docker"
    if found["present"] and not in_container():
        raise Refusal("EngineError", found["why"], 'fab doctor; or runner = "process"')
    return "process"


def choose_device(asked: str, gpus: str) -> str:
    """gpu or cpu; GpuError where a GPU is asked for and the box has none."""
    try:
        ask = parse_gpus(gpus)
    except ValueError as no:
        raise Refusal("UsageError", f"gpus: {no}", "") from no
    if asked == "cpu" or ask.cards == 0:
        return "cpu"
    found = cards()
    if not found and (asked == "gpu" or ask.cards > 0):
        raise Refusal("GpuError", "a GPU is asked for and nvidia-smi lists none", "fab doctor")
    if ask.cards > len(found):
        raise Refusal("GpuError", f"{ask.cards} GPUs asked for, {len(found)} here", "--gpus N")
    return "gpu" if found else "cpu"


def _write_files(folder: str, ask: dict[str, Any]) -> None:
    """The run's own copies: the program, compose.yaml, and its variables (0600)."""
    if ask.get("code"):
        unpack_code(base64.b64decode(ask["code"]), os.path.join(folder, "code"))
    os.makedirs(os.path.join(folder, "code"), exist_ok=True)
    for name, text in (("compose.yaml", ask.get("compose")), ("env", ask.get("env"))):
        if text:
            with atomic_file(os.path.join(folder, name)) as file:
                file.write(text.encode())


def unpack_code(content: bytes, target: str) -> None:
    """Plain files and folders of a tar, all of them under `target`."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            parts = member.name.split("/")
            if (
                os.path.isabs(member.name)
                or ".." in parts
                or not (member.isreg() or member.isdir())
            ):
                raise Refusal("DataError", f"code: {member.name!r} can't be unpacked", "")
            path = os.path.join(target, *parts)
            if member.isdir():
                os.makedirs(path, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None
            with open(path, "wb") as file:
                shutil.copyfileobj(source, file)
            os.chmod(path, 0o700 if member.mode & 0o100 else 0o600)


def start_run(places: Places, run_id: str) -> None:
    """Give a run a supervisor, detached from us; nothing happens where it has one."""
    folder = run_folder(places, run_id)
    log = os.path.join(folder, "logs", "supervisor.log")
    start_detached("supervise", folder, log, _outside_our_scope(run_id))


def start_detached(module: str, argument: str, log: str, scope: Sequence[str] = ()) -> None:
    """Start a module of this package that outlives us: by a shell that ends at once, in a session
    of its own, all streams redirected. It is nobody's child then: no zombie in a keeper."""
    command = [*scope, sys.executable, "-S", "-m", f"{__package__}.{module}", argument]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    output = os.open(log, flags, 0o600)
    try:
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": _package_root()},
            cwd="/",
            start_new_session=True,
            check=True,
        )
    finally:
        os.close(output)


def _package_root() -> str:
    """What must be in PYTHONPATH for `-m` to find this package: the zipapp, or the sources."""
    root = os.path.abspath(__file__)
    for _ in range(len((__package__ or "").split(".")) + 1):
        root = os.path.dirname(root)
    return root


def _outside_our_scope(run_id: str) -> list[str]:
    """Under systemd a scope of its own, so that neither a logout nor a stop of the keeper ends it.

    A transient scope needs no daemon-reload, which would take the GPUs from containers.
    """
    if not os.path.isdir("/run/systemd/system") or not shutil.which("systemd-run"):
        return []
    scope = [
        "systemd-run",
        "--scope",
        "--quiet",
        "--collect",
        f"--unit=gpubox-{run_id}-{os.getpid()}",
    ]
    if os.getuid() == 0:
        return scope
    lingers = os.path.exists("/var/lib/systemd/linger/" + os.environ.get("USER", ""))
    return [*scope, "--user"] if lingers and os.environ.get("XDG_RUNTIME_DIR") else []


def wait(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: wait for the first step of a run that was started before."""
    places = find_places(request)
    return wait_for_first_step(places, pick_run(places, request.get("run", "")), wire)
