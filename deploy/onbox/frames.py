"""Reads the laptop's frames from standard input, and ends the program when they stop coming."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import threading
import time
import zlib
from typing import BinaryIO, Callable, Iterator

from .refusal import Refusal
from .wire import CHANGES, LIFE, ZLIB

F_SETPIPE_SZ = 1031  # Linux; in the module `fcntl` from Python 3.10 on
LARGEST = 16 << 20  # of one frame
SILENCE = 60.0  # s that a read waits before the laptop is taken for gone


class Frames:
    """The laptop's frames; the process ends itself when they stop coming without an end.

    Only a read that waits counts as silence: what is done between two of them, such as the sync
    of a slow disk, may take as long as it takes.
    """

    def __init__(
        self, stream: BinaryIO, lock: str, changes: Callable[[bytes], None] | None = None
    ) -> None:
        """`changes` gets the frames with changes: they may come in the middle of a part."""
        self._stream = stream
        self._lock = lock
        self._changes = changes
        self._waits_since: float | None = None
        self._ended = False
        with contextlib.suppress(OSError):  # no pipe, or the user's share of wide ones is used up
            fcntl.fcntl(stream.fileno(), F_SETPIPE_SZ, 1 << 20)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._ended:
            since = self._waits_since
            if since is not None and time.monotonic() - since >= SILENCE:
                shutil.rmtree(self._lock, ignore_errors=True)
                os._exit(3)
            time.sleep(1)

    def _read(self, length: int) -> bytes:
        """Exactly so many bytes; fewer only at the end of the stream."""
        self._waits_since = time.monotonic()
        data = self._stream.read(length)
        self._waits_since = None
        self._ended = len(data) < length
        return data

    def next(self) -> bytes | None:
        """One frame; None at the end of the stream. A frame that broke off counts as the end."""
        while True:
            head = self._read(4)
            if len(head) < 4:
                return None
            length = struct.unpack(">I", head)[0]
            if length == LIFE:
                continue
            squeezed, changes = length & ZLIB, length & CHANGES
            length &= ~(ZLIB | CHANGES)
            if length > LARGEST:
                raise out_of_step()
            data = self._read(length)
            if len(data) < length:
                return None
            data = unsqueezed(data) if squeezed else data
            if not changes:
                return data
            if self._changes is None:
                raise out_of_step()
            self._changes(data)

    def data(self) -> Iterator[bytes]:
        """Frames up to an empty one; EOFError where they break off before."""
        while True:
            frame = self.next()
            if frame is None:
                raise EOFError
            if not frame:
                return
            yield frame


def unsqueezed(data: bytes) -> bytes:
    """The content of a zlib frame, which is no longer than a plain one may be."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, LARGEST)
    except zlib.error:
        raise out_of_step() from None
    if not stream.eof:
        raise out_of_step()
    return plain


def out_of_step() -> Refusal:
    return Refusal("TransferError", "the stream is out of step", "try again")
