"""Everything that `fab doctor` asks of a box, looked up at once; what can't be learnt says why."""

from __future__ import annotations

import os
import pwd
import shutil
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Callable

from .disks import mount_of, try_disk
from .engine_facts import engine_in_depth
from .facts import facts, output
from .places import Places, find_places
from .pythons import candidates, probe
from .reach import reachable

PATIENCE = 100.0  # seconds; the check in the image alone may take a cold TensorFlow import


def doctor(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """facts() and, under their own names, what each probe found or {"unknown": why}."""
    places = find_places(request)
    images = [str(each) for each in request.get("images") or []]
    probes: dict[str, Callable[[], Any]] = {
        "engine": lambda: engine_in_depth(images),
        "login": login,
        "time": time.time,
        "shm": lambda: room("/dev/shm"),
        "memory_limit": memory_limit,
        "data_disk": lambda: look_at(places.data),
        "input_disk": lambda: look_at(places.input),
        "reach": reachable,
        "tensorflow": lambda: own_tensorflow(places),
        "tools": lambda: [name for name in ("zstd", "systemctl", "apt-get") if shutil.which(name)],
    }
    base = facts(request, wire)
    # The disks before the rest: a rate that was measured beside a container's start says little.
    first = ("data_disk", "input_disk")
    found = {name: attempt(probes.pop(name)) for name in first}
    return {**base, **found, **together(probes)}


def attempt(probe: Callable[[], Any]) -> Any:
    try:
        return probe()
    except Exception as no:  # one probe that fails must not take the others with it
        return {"unknown": f"{type(no).__name__}: {no}"}


def together(probes: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """All probes at once, each in a thread; one that takes too long is left behind."""
    pool = ThreadPoolExecutor(len(probes))
    running = {name: pool.submit(attempt, probe) for name, probe in probes.items()}
    wait(running.values(), timeout=PATIENCE)
    pool.shutdown(wait=False)
    late = {"unknown": f"no answer within {PATIENCE:.0f} s"}
    return {name: each.result() if each.done() else late for name, each in running.items()}


def login() -> dict[str, Any]:
    """Who we are here, with which shell, and whether sudo works without a password."""
    user = pwd.getpwuid(os.getuid())
    return {
        "user": user.pw_name,
        "shell": user.pw_shell,
        "root": os.getuid() == 0,
        "sudo": shutil.which("sudo") is not None and output("sudo", "-n", "true") is not None,
    }


def look_at(path: str) -> dict[str, Any]:
    """Mount and measured speed of a folder's disk."""
    free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
    return {"path": path, **mount_of(path), **try_disk(path, free)}


def own_tensorflow(places: Places) -> dict[str, Any]:
    """The first Python with TensorFlow, for boxes where runs are processes; {} with an engine."""
    if shutil.which("docker"):
        return {}
    for path in candidates():
        found = probe(places, path)
        if found.get("tensorflow"):
            return {"path": path, **found}
    return {"path": ""}


def room(path: str) -> int:
    return os.statvfs(path).f_blocks * os.statvfs(path).f_frsize


def memory_limit() -> int:
    """Bytes that this container may use, 0 without a limit (cgroup v2, then v1)."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return 0
