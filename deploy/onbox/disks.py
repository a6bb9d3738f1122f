"""What disk a folder is on: its room, its kind, and how fast it takes large and small files."""

from __future__ import annotations

import os
import time
from typing import Any

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "glusterfs", "lustre", "beegfs", "gpfs")
LARGE = 32 * 1024 * 1024
SMALL_FILES = 12
PATIENCE = 2.0  # seconds for each of the two trials


def disk(path: str) -> dict[str, Any]:
    """A folder's file system: device, free and total bytes and inodes (0 inodes: not counted)."""
    room = os.statvfs(path)
    return {
        "path": path,
        "device": os.stat(path).st_dev,
        "free": room.f_bavail * room.f_frsize,
        "total": room.f_blocks * room.f_frsize,
        "free_inodes": room.f_favail,
        "total_inodes": room.f_files,
    }


def mount_of(path: str) -> dict[str, Any]:
    """Mount point, type and source of the file system that holds a folder."""
    real, best = os.path.realpath(path), {"point": "", "type": "unknown", "source": ""}
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            point = left.split()[4].encode().decode("unicode_escape")
            kind, source = right.split()[:2]
            if within(real, point) and len(point) >= len(best["point"]):
                best = {"point": point, "type": kind, "source": source}
    return {**best, "network": is_network(best["type"])}


def within(path: str, point: str) -> bool:
    return point == "/" or path == point or path.startswith(point.rstrip("/") + "/")


def is_network(kind: str) -> bool:
    """FUSE counts as network: what a provider mounts that way (s3fs, juicefs) pays per file too."""
    return kind in NETWORK or kind.startswith("fuse.") or kind == "fuse"


def try_disk(path: str, free: int) -> dict[str, Any]:
    """Bytes a second into one large file, seconds for one small file; both synced, both removed."""
    import tempfile  # large: whoever only asks for room does without it

    with tempfile.TemporaryDirectory(prefix=".gpubox-try-", dir=path) as folder:
        return {
            "write_rate": _write_rate(os.path.join(folder, "large"), min(LARGE, free // 10)),
            "file_seconds": _file_seconds(folder),
        }


def _write_rate(path: str, size: int) -> float:
    chunk, written = os.urandom(1024 * 1024), 0
    start = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        while written < size and time.monotonic() - start < PATIENCE:
            written += file.write(chunk[: size - written])
        os.fsync(file.fileno())
    return written / max(time.monotonic() - start, 1e-6)


def _file_seconds(folder: str) -> float:
    start, count = time.monotonic(), 0
    while count < SMALL_FILES and time.monotonic() - start < PATIENCE:
        with open(os.path.join(folder, str(count)), "wb") as file:
            file.write(b"x" * 4096)
        count += 1
    for number in range(count):
        with open(os.path.join(folder, str(number)), "rb") as file:
            file.read()
    return (time.monotonic() - start) / max(count, 1)
