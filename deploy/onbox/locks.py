"""A lock as a folder on any disk, held by host, boot id, pid and heartbeat; dead ones are taken."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from typing import Any, Iterator

from .publish import write_json
from .refusal import Refusal

HEARTBEAT = 20.0  # seconds between two signs of life
GRAVE_SECONDS = 3600.0  # how long a dead lock is kept, so that a late taker finds it
DEAD_AFTER = 120.0  # seconds without one, by the clock of the file system that holds the lock


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def process_start(pid: int) -> str:
    """When a process began (clock ticks since boot): tells it from a later one of its pid."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return ""


def holder(why: str = "", who: str = "") -> dict[str, Any]:
    """Who we are, in the form that stands in every lock and lease."""
    return {
        "schema": 1,
        "host": socket.gethostname(),
        "boot": boot_id(),
        "pid": os.getpid(),
        "started": process_start(os.getpid()),
        "who": who,
        "why": why,
        "since": time.time(),
    }


def is_dead(owner: dict[str, Any], age: float) -> bool:
    """Same boot and no such process, or no heartbeat for DEAD_AFTER seconds (`age`)."""
    if (
        owner.get("boot")
        and owner.get("boot") == boot_id()
        and owner.get("host") == socket.gethostname()
    ):
        started = process_start(int(owner.get("pid", 0)))
        return not started or started != owner.get("started")
    return age > DEAD_AFTER


def read_holder(lock: str) -> dict[str, Any] | None:
    """Who holds a lock: its holder.json, {} where that is damaged; None where nobody does."""
    try:
        with open(os.path.join(lock, "holder.json")) as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {} if os.path.isdir(lock) else None


def clock_of(folder: str) -> float:
    """Now, by the clock of the file system that `folder` is on (an NFS server has its own)."""
    probe = os.path.join(folder, f".clock-{socket.gethostname()}-{os.getpid()}")
    with open(probe, "w"):
        pass
    try:
        os.utime(probe, None)
        return os.stat(probe).st_mtime
    finally:
        os.unlink(probe)


def age_of(lock: str) -> float:
    """Seconds since the holder's last heartbeat."""
    folder = os.path.dirname(lock)
    for path in (os.path.join(lock, "holder.json"), lock):
        try:
            return clock_of(folder) - os.stat(path).st_mtime
        except OSError:
            continue
    return 0.0


def try_lock(lock: str, why: str = "", who: str = "") -> dict[str, Any] | None:
    """None when the lock is now ours, else its living holder."""
    mine = holder(why, who)
    while not place(lock, mine):
        owner = read_holder(lock)
        if owner is None:
            continue
        if not is_dead(owner, age_of(lock)):
            return owner
        bury(lock, owner)
    return None


def place(lock: str, mine: dict[str, Any]) -> bool:
    """Make the lock, its holder in it from the first moment; False where there is one already."""
    folder = tempfile.mkdtemp(prefix=os.path.basename(lock) + ".new-", dir=os.path.dirname(lock))
    try:
        write_json(os.path.join(folder, "holder.json"), mine)
        os.rename(folder, lock)
    except OSError as no:
        shutil.rmtree(folder, ignore_errors=True)
        if no.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    return True


def bury(lock: str, owner: dict[str, Any]) -> None:
    """Take a dead holder's lock away, and never the lock of whoever was faster.

    The grave is named after the dead one and stays for a while, so that a second taker who
    comes late can't rename the next holder's lock to it.
    """
    identity = json.dumps(owner, sort_keys=True).encode()
    import hashlib  # brings OpenSSL, 3 MiB: the keeper, which lives long, never comes here

    grave = f"{lock}.dead-{hashlib.sha256(identity).hexdigest()[:16]}"
    with contextlib.suppress(OSError):
        os.utime(lock, None)  # from when on the grave is kept
        os.rename(lock, grave)
    folder = os.path.dirname(lock)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.startswith(os.path.basename(lock) + ".dead-"):
            with contextlib.suppress(OSError):
                if clock_of(folder) - os.stat(path).st_mtime > GRAVE_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)


def remove_lock(lock: str) -> None:
    """Give a lock back, at once for everybody: it is renamed first."""
    grave = f"{lock}.free-{uuid.uuid4().hex[:8]}"
    with contextlib.suppress(OSError):
        os.rename(lock, grave)
        shutil.rmtree(grave, ignore_errors=True)


@contextlib.contextmanager
def locked(
    lock: str, why: str = "", who: str = "", wait: float = 0.0, on_wait: Any = None
) -> Iterator[None]:
    """Hold a lock while the block runs, after at most `wait` seconds; `on_wait(owner)` once if so."""
    deadline = time.monotonic() + wait
    told = False
    while True:
        owner = try_lock(lock, why, who)
        if owner is None:
            break
        if time.monotonic() >= deadline:
            raise Refusal(
                "Busy",
                f"{os.path.basename(lock)}: held by {describe(owner)}",
                "wait for it, or `fab unlock` if you know it to be dead",
            )
        if on_wait and not told:
            on_wait(owner)
            told = True
        time.sleep(0.2)
    mine, stop = read_holder(lock), threading.Event()
    threading.Thread(target=_beat, args=(lock, mine, stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        if read_holder(lock) == mine:  # a box that slept for long may have lost it meanwhile
            remove_lock(lock)


def _beat(lock: str, mine: dict[str, Any] | None, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT):
        with contextlib.suppress(OSError):
            if read_holder(lock) == mine:
                os.utime(os.path.join(lock, "holder.json"), None)


def describe(owner: dict[str, Any]) -> str:
    """`deploy by anna@laptop, pid 123 on gpu-box, for 40 s`."""
    if not owner:
        return "someone who has just taken it"
    age = max(0, int(time.time() - float(owner.get("since", 0))))
    by = " by {}".format(owner["who"]) if owner.get("who") else ""
    why = owner.get("why") or "someone"
    return f"{why}{by}, pid {owner.get('pid')} on {owner.get('host')}, for {age} s"
