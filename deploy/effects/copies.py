"""The laptop's last copies of what boxes said, readable after a box is off."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from deploy.effects.settings import laptop_folder


def write_atomically(path: Path, content: bytes, sync: bool = True) -> None:
    """A file that is there whole or not at all; without `sync` not after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def copy_path(box: str, what: str) -> Path:
    return laptop_folder() / "boxes" / box / what


def keep_copy(box: str, what: str, value: dict[str, Any]) -> None:
    """Remember an answer of a box under a name such as `status.json`; not synced, as a hundred
    boxes would take a second for it, and a copy that can't be read counts as none."""
    text = json.dumps({"schema": 1, "copied_at": time.time(), "value": value})
    write_atomically(copy_path(box, what), text.encode(), sync=False)


def last_copy(box: str, what: str) -> tuple[float, dict[str, Any]] | None:
    """(when, what) of the last copy; None without one that can be read."""
    try:
        found = json.loads(copy_path(box, what).read_bytes())
        return float(found["copied_at"]), dict(found["value"])
    except (OSError, ValueError, KeyError):
        return None
