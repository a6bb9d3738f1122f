"""The keeper's log: one line an event, at most two files of 512 KiB, never a reason to fail."""

from __future__ import annotations

import contextlib
import os
import sys
import time

LIMIT = 512 * 1024


class Journal:
    def __init__(self, path: str) -> None:
        self.path = path
        self._said: dict[str, str] = {}

    def say(self, text: str) -> None:
        shown = "".join(c if c.isprintable() else " " for c in text)
        line = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + shown + "\n"
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line)  # systemd's journal has it even when the disk is full
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            if os.path.exists(self.path) and os.stat(self.path).st_size > LIMIT:
                os.replace(self.path, self.path + ".1")
            with open(self.path, "a") as file:
                file.write(line)

    def once(self, key: str, text: str) -> None:
        """Say it the first time; again only after `forget(key)`."""
        if key not in self._said:
            self._said[key] = text
            self.say(text)

    def forget(self, key: str) -> None:
        self._said.pop(key, None)

    def problems(self) -> list[str]:
        """What was said once and still holds."""
        return list(self._said.values())
