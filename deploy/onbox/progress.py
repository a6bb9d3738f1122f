"""Says how far a staging is, not more often than anybody reads it."""

from __future__ import annotations

import time
from typing import Callable

Tell = Callable[..., None]


class Progress:
    """Tells how far a staging is, at most four times a second."""

    def __init__(self, total: int, tell: Tell) -> None:
        self.total, self._tell = total, tell
        self.done = 0
        self._told = 0.0

    def add(self, size: int, path: str) -> None:
        self.done += size
        now = time.monotonic()
        if now - self._told > 0.25:
            self._told = now
            self._tell(staged=self.done, total=self.total, file=path)
