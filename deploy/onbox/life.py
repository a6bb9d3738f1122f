"""One life of a box, from start to stop: which one this is, how long it lasts, where it is noted."""

from __future__ import annotations

import functools
import os
import socket
import time

from .locks import boot_id, process_start
from .places import own_folder


@functools.lru_cache(maxsize=1)
def life() -> str:
    """The boot and, as a container box shares its host's boot, when its first process began."""
    return f"{boot_id()}-{process_start(1)}"


def uptime() -> float:
    """Seconds since the box started (not since its host did, where the box is a container)."""
    began = int(process_start(1) or 0) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def keeper_folder() -> str:
    """~/.gpubox/keeper; one per host where the home is a network disk that several boxes share."""
    return _keeper_folder(own_folder())


@functools.lru_cache(maxsize=8)  # asked for at every look
def _keeper_folder(home: str) -> str:
    name = f"keeper@{socket.gethostname()}" if on_network_disk(home) else "keeper"
    path = os.path.join(home, name)
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def on_network_disk(path: str, mounts: str = "/proc/self/mounts") -> bool:
    """True where the longest mount point above `path` is NFS, CIFS or the like."""
    path, best, kind = os.path.realpath(path), "", ""
    try:
        with open(mounts, errors="replace") as file:
            for line in file:
                point, fstype = line.split()[1:3]
                point = point.replace("\\040", " ")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, fstype
    except (OSError, ValueError):
        return False
    return kind.startswith(("nfs", "cifs", "smb", "lustre", "ceph", "beegfs", "gpfs", "9p", "afs"))
