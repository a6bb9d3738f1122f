"""Leases of GPUs between all users of a box: one file a card, locked while a run uses it."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import time
from typing import Any, Iterator

from .facts import output

FOLDERS = ("/run/lock/gpubox", "/tmp/gpubox-leases")


def lease_folder() -> str:
    """The folder that all users of the box share; $GPUBOX_LEASES instead, for tests."""
    named = os.environ.get("GPUBOX_LEASES")
    for path in (named,) if named else FOLDERS:
        with contextlib.suppress(OSError):
            os.makedirs(path, exist_ok=True)
            with contextlib.suppress(PermissionError):
                os.chmod(path, 0o1777)
            return path
    raise OSError(f"neither of {FOLDERS} can be made")


def _open(uuid: str) -> int:
    """The lease file of a card, usable by every user of the box.

    Never O_CREAT on one that is there: the kernel refuses that in a sticky folder when it is
    somebody else's (fs.protected_regular).
    """
    path = os.path.join(lease_folder(), os.path.basename(uuid))
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(fd, 0o666)
    return fd


def _lock(fd: int, tries: int = 1) -> bool:
    """Several tries where it matters: a reader that asks who holds a card locks it for a moment."""
    for left in reversed(range(tries)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if left:
                time.sleep(0.1)
    return False


class Leases:
    """The cards that this process holds; `release` gives them back, and so does its death."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    @property
    def gpus(self) -> list[str]:
        return list(self._held)

    def take(self, uuids: list[str], run_id: str) -> bool:
        """All of them or none; in one order, so that two takers can't block each other."""
        for uuid in sorted(uuids):
            fd = _open(uuid)
            if not _lock(fd, tries=5):
                os.close(fd)
                self.release()
                return False
            owner = {"run": run_id, "user": getpass.getuser(), "pid": os.getpid()}
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(owner).encode(), 0)
            self._held[uuid] = fd
        return True

    def release(self) -> None:
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()


def holder_of(uuid: str) -> str:
    """Who holds a card's lease, as words; "" where nobody does."""
    try:
        fd = _open(uuid)
    except OSError as no:
        return f"somebody (its lease can't be opened: {no.strerror})"
    try:
        if _lock(fd):
            return ""
        with contextlib.suppress(ValueError, KeyError):
            owner = json.loads(os.pread(fd, 4096, 0))
            return f"run {owner['run']} of {owner['user']}"
        return "somebody"
    finally:
        os.close(fd)


def cards() -> list[dict[str, Any]]:
    """The box's GPUs as {uuid, index, name}; [] where there are none or none can be listed."""
    listed = output("nvidia-smi", "--query-gpu=uuid,index,name", "--format=csv,noheader")
    rows = [[cell.strip() for cell in line.split(",")] for line in (listed or "").splitlines()]
    return [dict(zip(("uuid", "index", "name"), row)) for row in rows if len(row) == 3]


def _processes() -> Iterator[tuple[str, str]]:
    listed = output("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
    for line in (listed or "").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 2:
            yield cells[0], cells[1]


def taken(found: list[dict[str, Any]]) -> dict[str, str]:
    """UUID → who uses it: a lease of anyone's, or any process on the card."""
    by = {card["uuid"]: holder_of(card["uuid"]) for card in found}
    by = {uuid: who for uuid, who in by.items() if who}
    for uuid, pid in _processes() if found else ():
        by.setdefault(uuid, f"process {pid}, which is not one of our runs")
    return by
