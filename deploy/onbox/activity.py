"""Activity leases: a file with a heartbeat for as long as some long work of ours goes on here."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from typing import Any, Iterator

from .locks import HEARTBEAT, boot_id, holder, process_start
from .places import own_folder
from .publish import read_json, write_json

COUNTER = itertools.count()


def leases_folder() -> str:
    path = os.path.join(own_folder(), "leases")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


@contextlib.contextmanager
def active(what: str, who: str = "") -> Iterator[None]:
    """The box counts as working at `what` while the block runs; nested and parallel uses are fine.

    The lease is a hint for the keeper, so a full disk must not fail the work itself: then there
    is no lease.
    """
    name = re.sub(r"[^A-Za-z0-9._]+", "-", what).strip("-.")[:60] or "work"
    path = os.path.join(leases_folder(), f"{name}-{os.getpid()}-{next(COUNTER)}.json")
    with contextlib.suppress(OSError):
        write_json(path, holder(what, who))
    stop = threading.Event()
    threading.Thread(target=_beat, args=(path, stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        with contextlib.suppress(OSError):
            os.unlink(path)
            with open(end_path(), "w"):
                pass


def end_path() -> str:
    """Touched whenever some work ends, so that a look sees what came and went since the last."""
    return os.path.join(leases_folder(), ".ended")


def last_end() -> int:
    """When work ended last (ns), 0 where none ever did."""
    with contextlib.suppress(OSError):
        return os.stat(end_path()).st_mtime_ns
    return 0


def _beat(path: str, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT):
        with contextlib.suppress(OSError):
            os.utime(path, None)


def read_leases() -> list[dict[str, Any]]:
    """The leases whose process still lives on this boot of this box, each with its `beat` (mtime
    in ns: the keeper sees by its own clock whether that moves); files of dead ones are removed."""
    found = []
    folder = leases_folder()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.endswith(".json"):
            continue
        try:
            lease = {**read_json(path), "beat": os.stat(path).st_mtime_ns}
        except (OSError, ValueError):
            continue
        if lease.get("host") != os.uname().nodename:
            continue  # a home that several boxes share: not ours to judge
        started = process_start(int(lease.get("pid", 0)))
        if lease.get("boot") == boot_id() and started and started == lease.get("started"):
            found.append(lease)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)
    return found
