"""`fab hold`: keeps a box awake for a while, whatever it does; the caps hold all the same."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from .life import keeper_folder, life
from .publish import read_json, write_json
from .refusal import Refusal

LONGEST = 7 * 86400.0


def hold_path() -> str:
    return os.path.join(keeper_folder(), "hold.json")


def read_hold() -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        return read_json(hold_path())
    return None


def hold_left(hold: dict[str, Any], at: float, wall: float) -> float:
    """Seconds that a hold has left: by the monotonic clock, and by the wall clock (never more
    than was asked for) after a reboot."""
    if hold.get("life") == life():
        return float(hold["until"]) - at
    return min(float(hold["seconds"]), float(hold["until_wall"]) - wall)


def hold(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Request: {seconds, why, who}; 0 seconds ends a hold. Answer: {seconds, why, armed}: where
    no keeper is armed there is nothing that a hold keeps off."""
    from .armed import read_armed
    from .keeper_status import keeper_lives, read_status

    armed = read_armed() is not None and keeper_lives(read_status())
    seconds = float(request["seconds"])
    if not 0 <= seconds <= LONGEST:
        raise Refusal("UsageError", "a hold lasts at most 7 days", "hold it again later")
    if seconds == 0:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(hold_path())
        return {"seconds": 0.0, "why": "", "armed": armed}
    why = str(request.get("why", ""))[:200]
    until = {"until": time.monotonic() + seconds, "until_wall": time.time() + seconds}
    held = {"schema": 1, "life": life(), "seconds": seconds, "why": why, **until}
    write_json(hold_path(), {**held, "who": str(request.get("who", ""))[:100]})
    return {"seconds": seconds, "why": why, "armed": armed}
