"""What this box is: system, Python, folders, engine, GPUs, keeper; looked up in one go."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from typing import Any

from .disks import disk
from .gpu_facts import gpus
from .places import find_places


def facts(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    places = find_places(request)
    return {
        "host": platform.node(),
        "user": {"uid": os.getuid(), "gid": os.getgid(), "home": os.path.expanduser("~")},
        "system": {"machine": platform.machine(), "kernel": platform.release(), "os": os_release()},
        "python": {"path": sys.executable, "version": platform.python_version()},
        "cpus": os.cpu_count(),
        "memory": memory_bytes(),
        "places": {name: disk(getattr(places, name)) for name in ("data", "input", "runs", "home")},
        "notes": places.notes,
        "container": in_container(),
        "systemd": os.path.isdir("/run/systemd/system"),
        "engine": engine(),
        "gpus": gpus(),
    }


def os_release() -> str:
    try:
        with open("/etc/os-release") as file:
            pairs = dict(line.rstrip().split("=", 1) for line in file if "=" in line)
        return pairs.get("PRETTY_NAME", "").strip('"')
    except OSError:
        return platform.system()


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    try:
        with open("/proc/1/environ", "rb") as file:
            return b"container=" in file.read()
    except OSError:
        return False


def output(*command: str, **options: Any) -> str | None:
    """What a program prints, or None where it is missing, fails or takes over `seconds` (10)."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=options.get("seconds", 10),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def engine() -> dict[str, Any]:
    """The Docker engine: `present` (the program), `answers` (its daemon), versions, or why not."""
    if shutil.which("docker") is None:
        return {"present": False, "answers": False, "why": "no docker program on this box"}
    server = output("docker", "version", "--format", "{{.Server.Version}} {{.Server.Arch}}")
    if not server:
        return {
            "present": True,
            "answers": False,
            "why": "the Docker daemon does not answer this user",
        }
    version, _, arch = server.strip().partition(" ")
    compose = output("docker", "compose", "version", "--short")
    return {
        "present": True,
        "answers": True,
        "version": version,
        "arch": arch,
        "compose": (compose or "").strip(),
    }
