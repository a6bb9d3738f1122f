"""Lets one thread that computes leave the others their turn."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

TURN = 0.0002  # s


@contextlib.contextmanager
def threads_that_take_turns() -> Iterator[None]:
    """While one thread makes many small things, those that wait for a line do not wait for it.

    By default a thread that has data to pass on gets its turn after 5 ms: at every frame of an
    upload, at every message of a login. And the garbage collector looks at each new tuple many
    times, of which none refers to itself.
    """
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(TURN)
    gc.set_threshold(100_000, *thresholds[1:])
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
