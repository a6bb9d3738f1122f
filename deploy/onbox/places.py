"""Where things are on this box: /data, /input, the runs, and our own state."""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

from .refusal import Refusal


class Places(NamedTuple):
    data: str
    input: str
    runs: str
    home: str
    notes: list[str]


def own_folder() -> str:
    """~/.gpubox (or $GPUBOX_HOME), made with mode 0700."""
    path = os.environ.get("GPUBOX_HOME") or os.path.expanduser("~/.gpubox")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def usable(path: str) -> bool:
    """True where the folder is there, or can be made, and can be written to."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError:
        return False
    return os.access(path, os.W_OK | os.X_OK)


def find_places(request: dict[str, Any]) -> Places:
    """The folders that a request names (`folders: {data, input, runs}`), else the usual ones.

    A folder that the user named is used or refused. The usual /data and /input give way to
    folders under the home where they can't be used, and a note says so.
    """
    asked = request.get("folders") or {}
    notes: list[str] = []
    data = _place(asked.get("data"), "/data", "data", notes)
    fast = _place(asked.get("input"), "/input", "input", notes)
    runs = os.path.expanduser(asked.get("runs") or os.path.join(data, "runs"))
    if not usable(runs):
        raise Refusal("BoxUnfit", f"{runs}: the run folder can't be written", "set boxes.NAME.runs")
    return Places(data, fast, runs, own_folder(), notes)


def _place(asked: str | None, usual: str, name: str, notes: list[str]) -> str:
    if asked:
        path = os.path.abspath(os.path.expanduser(asked))
        if not usable(path):
            raise Refusal(
                "BoxUnfit",
                f"{path} on {socket.gethostname()}: not there, or not writable",
                f"mount it, or set boxes.NAME.{name} to a folder that is",
            )
        return path
    if usable(usual):
        return usual
    fallback = os.path.expanduser("~/gpubox/" + name)
    if not usable(fallback):
        raise Refusal("BoxUnfit", f"neither {usual} nor {fallback} can be written", "")
    notes.append(f"{usual} can't be used here: {fallback} instead")
    return fallback
