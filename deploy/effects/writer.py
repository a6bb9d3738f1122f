"""Writes an upload's frames in a thread of its own, squeezed where that is sooner through the line."""

from __future__ import annotations

import contextlib
import queue
import struct
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import IO

from deploy.onbox.wire import LIFE, ZLIB
from deploy.plan.transfer import is_worth_squeezing

QUEUED = 2  # frames of 1 MiB: the next ones are read and hashed while these are written
EVERY = 5.0  # s between two signs of life
LARGE = 1 << 16  # bytes: frames from here on tell how fast the line is
SAMPLE = 1 << 16  # bytes that are squeezed to see whether it is worth it
LOOK_EVERY = 4  # large frames
FAST = 100e6  # bytes/s: a line from here on is not looked at, it is hardly slower than squeezing


class Writer:
    """A queue of frames and the thread that writes them; `sent` are bytes that have gone out."""

    def __init__(self, target: IO[bytes]) -> None:
        self.sent = 0
        self._target = target
        self._frames: queue.Queue[tuple[bytes, bool, int] | None] = queue.Queue(QUEUED)
        self._fault: Exception | None = None
        self._squeezer = Squeezer()
        widen(target)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, data: bytes, small: bool = False, mark: int = 0) -> None:
        """Write a frame soon; `small`: it is text, and squeezed in any case; `mark` is of `wire`.

        What went wrong with those before is raised here: OSError, EOFError or ValueError.
        """
        if self._fault:
            raise self._fault
        self._frames.put((data, small, mark))

    def end(self) -> None:
        """Nothing more comes: write what is queued and close. A fault is the reader's to tell."""
        if self._thread.is_alive():
            self._frames.put(None)
            self._thread.join()

    def _work(self) -> None:
        while True:
            try:
                item = self._frames.get(timeout=EVERY)
            except queue.Empty:
                self._do(lambda: self._write(LIFE, b""))
                continue
            if item is None:
                self._do(self._target.close)
                return
            self._do(partial(self._frame, *item))

    def _do(self, work: Callable[[], None]) -> None:
        """After a fault nothing is written any more, but the queue is still emptied."""
        if self._fault is None:
            try:
                work()
            except (OSError, EOFError, ValueError) as no:
                self._fault = no

    def _frame(self, data: bytes, small: bool, mark: int) -> None:
        squeezed = zlib.compress(data, 1) if small else self._squeezer.squeezed(data)
        if squeezed is None or len(squeezed) >= len(data):
            self._write(len(data) | mark, data)
        else:
            self._write(len(squeezed) | mark | ZLIB, squeezed)

    def _write(self, head: int, data: bytes) -> None:
        began = time.monotonic()
        self._target.write(struct.pack(">I", head))
        self._target.write(data)
        if self._frames.empty() or len(data) >= LARGE:
            self._target.flush()
        if len(data) >= LARGE:
            self._squeezer.line_took(len(data), time.monotonic() - began)
        self.sent += len(data)


def widen(end: IO[bytes]) -> None:
    """Let a pipe hold a frame, so that its two ends wait less for each other; Linux only."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(end.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)


class Squeezer:
    """Squeezes contents where the line is slow and they get smaller; looks again now and then."""

    def __init__(self) -> None:
        self._squeezing = False
        self._frames = 0
        self._bytes, self._seconds = 0.0, 0.0  # of late, on the line

    def line_took(self, count: int, seconds: float) -> None:
        """Older frames count less and less: a line may change."""
        self._bytes = self._bytes * 0.9 + count
        self._seconds = self._seconds * 0.9 + seconds

    def squeezed(self, data: bytes) -> bytes | None:
        """The data squeezed, or None where it is better sent as it is."""
        if len(data) < LARGE or not self._bytes or self._line() > FAST:
            return None
        self._frames += 1
        if not self._squeezing and self._frames % LOOK_EVERY != 1:
            return None
        if not self._squeezing and not self._is_worth_it(data[:SAMPLE])[0]:
            return None
        self._squeezing, squeezed = self._is_worth_it(data)
        return squeezed

    def _is_worth_it(self, data: bytes) -> tuple[bool, bytes]:
        began = time.monotonic()
        squeezed = zlib.compress(data, 1)
        spent = max(1e-6, time.monotonic() - began)
        ratio = len(squeezed) / len(data)
        return is_worth_squeezing(self._line(), len(data) / spent, ratio), squeezed

    def _line(self) -> float:
        """Bytes/s of late."""
        return self._bytes / max(1e-6, self._seconds)
