"""Makes room on /input: old versions leave, least recently used first, never one that a run uses."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, Callable

from .places import Places
from .publish import read_json
from .refusal import Refusal
from .staged import Staged

RESERVE = 16 << 20  # bytes that stay free


def make_room(
    places: Places, staged: Staged, blocks: int, inodes: int, tell: Callable[..., None]
) -> None:
    """Remove old versions until `blocks` bytes and `inodes` fit; NoSpace where they never will."""
    if not lacking(places.input, blocks, inodes):
        return
    for old in candidates(places, staged):
        tell(note="making room: " + os.path.basename(old) + " leaves /input")
        remove(places, old)
        if not lacking(places.input, blocks, inodes):
            return
    missing = lacking(places.input, blocks, inodes)
    if missing:
        raise Refusal(
            "NoSpace",
            f"{places.input} (fast disk): {missing}",
            "free some, or set boxes.NAME.input",
        )


def block_size(folder: str) -> int:
    """Bytes that a file takes at least on the file system of `folder`."""
    return os.statvfs(folder).f_frsize or 4096


def lacking(folder: str, blocks: int, inodes: int) -> str:
    """What is missing on a file system, in words; "" where all fits."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if blocks > 0 and blocks + min(RESERVE, free // 20) > free:
        return f"{blocks >> 20} MiB are needed, {free >> 20} MiB are free"
    if room.f_files and inodes > room.f_favail:
        return f"{inodes} inodes are needed, {room.f_favail} are free"
    return ""


def candidates(places: Places, staged: Staged) -> list[str]:
    """Versions that may leave: those that no link names first, then by last use."""
    folder = os.path.join(places.input, ".gpubox")
    used = in_use(places)
    found = []
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        ready = name.partition(".part")[0].partition(".damaged")[0]
        if "@" not in name or not os.path.isdir(path) or path in (staged.path, staged.part):
            continue
        if not is_used(ready, used):
            found.append((_is_linked(places, name), _last_use(path), path))
    return [path for _, _, path in sorted(found)]


def _is_linked(places: Places, name: str) -> bool:
    link = os.path.join(places.input, name.partition("@")[0])
    return os.path.islink(link) and os.path.basename(os.readlink(link)) == name


def _last_use(path: str) -> float:
    with contextlib.suppress(OSError):
        return os.stat(path + ".used").st_mtime
    return os.stat(path).st_mtime


def in_use(places: Places) -> set[str]:
    """NAME@ID, or the beginning of it, of every version that a run needs which has not ended for good."""
    used = set()
    with contextlib.suppress(OSError):
        for run in os.listdir(places.runs):
            used.add(_version_of(os.path.join(places.runs, run)))
    return used - {""}


def is_used(version: str, used: set[str]) -> bool:
    """True where `version` (NAME@ID) is one of those, written in full or in part."""
    return any(version.startswith(each) for each in used)


def _version_of(folder: str) -> str:
    """A run's version; "" where it has ended for good or has no data set."""
    try:
        data: Any = read_json(os.path.join(folder, "run.json")).get("data") or {}
    except (OSError, ValueError):
        return ""
    with contextlib.suppress(OSError, ValueError):
        if read_json(os.path.join(folder, "state.json"))["state"] in ("finished", "failed"):
            return ""
    return f"{data['name']}@{data['version']}" if data.get("version") else ""


def remove(places: Places, path: str) -> None:
    """Rename first, so that nobody takes a half-removed version for a whole one."""
    trash = f"{path}.gone-{os.getpid()}"
    os.rename(path, trash)
    shutil.rmtree(trash, ignore_errors=True)
    for end in (".used", ".journal", ".members", ".boot", ".synced", ".checked"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + end)
