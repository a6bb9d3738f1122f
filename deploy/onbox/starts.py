"""While the box is being stopped no run may start: a marker, and who starts runs asks for it."""

from __future__ import annotations

import contextlib
import os
import time

from .life import keeper_folder, life
from .publish import read_json, write_json
from .refusal import Refusal


def marker_path() -> str:
    return os.path.join(keeper_folder(), "stopping.json")


def stopping() -> str:
    """Why no run may start just now; "" where one may."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        marker = read_json(marker_path())
        fresh = 0 <= time.monotonic() - float(marker["at"]) < float(marker["seconds"])
        return str(marker["why"]) if fresh and marker["life"] == life() else ""
    return ""


def refuse_while_stopping() -> None:
    why = stopping()
    if why:
        raise Refusal("Busy", f"no run can start: {why}", "fab up starts the box again; fab idle")


def forbid_starts(why: str, seconds: float) -> None:
    """No new run for a while: until the box is off, or `allow_starts`. A full disk must not keep
    the box on, so a marker that can't be written is left out."""
    with contextlib.suppress(OSError):
        at = time.monotonic()
        marker = {"schema": 1, "life": life(), "why": why, "at": at, "seconds": seconds}
        write_json(marker_path(), marker)


def allow_starts() -> None:
    with contextlib.suppress(OSError):
        os.unlink(marker_path())
