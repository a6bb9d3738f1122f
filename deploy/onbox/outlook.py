"""Whether a run that is interrupted will go on by itself: who follows it waits for that."""

from __future__ import annotations

import time
from typing import Any

from .armed import read_armed
from .keeper_status import keeper_lives, read_status
from .steps import boot_mark
from .tending import goes_on


def will_go_on(state: dict[str, Any]) -> bool:
    """The keeper lives, or starts by itself after a boot, and is going to resume the run."""
    if not goes_on(state, time.time(), boot_mark()):
        return False
    from .arming import after_reboot  # large, and hardly ever asked

    armed = read_armed()
    return armed is not None and (keeper_lives(read_status()) or after_reboot(armed))
