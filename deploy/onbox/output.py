"""A run's output in segments whose names are their offsets: its beginning and its end are kept."""

from __future__ import annotations

import contextlib
import os
import re
from typing import BinaryIO, Iterator

SEGMENT = 8 << 20  # bytes in one file
KEPT = 8  # newest segments kept, beside the first: 72 MiB at most for a run
NAME = re.compile(r"output-(\d{15})\.log")


def segments(logs: str) -> list[int]:
    """The offsets at which the segments in a folder begin, ascending."""
    with contextlib.suppress(OSError):
        return sorted(int(m.group(1)) for m in map(NAME.fullmatch, os.listdir(logs)) if m)
    return []


def segment_path(logs: str, start: int) -> str:
    return os.path.join(logs, f"output-{start:015d}.log")


def end_of(logs: str) -> int:
    """The offset after the last byte: how much the run ever printed."""
    found = segments(logs)
    return found[-1] + os.path.getsize(segment_path(logs, found[-1])) if found else 0


class OutputLog:
    """The one writer of a run's output; it goes on where an earlier one ended."""

    def __init__(self, logs: str, segment: int = SEGMENT, kept: int = KEPT) -> None:
        os.makedirs(logs, mode=0o700, exist_ok=True)
        self._logs, self._segment, self._kept = logs, segment, kept
        self.end = end_of(logs)
        self._start = (segments(logs) or [0])[-1]
        self._file = self._open()

    def _open(self) -> BinaryIO:
        fd = os.open(segment_path(self._logs, self._start), os.O_WRONLY | os.O_CREAT, 0o600)
        os.lseek(fd, 0, os.SEEK_END)
        return os.fdopen(fd, "wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Append; a full disk loses output, never the run."""
        with contextlib.suppress(OSError):
            if self.end - self._start >= self._segment:
                self._next_segment()
            self.end += self._file.write(data)

    def _next_segment(self) -> None:
        self._file.close()
        self._start = self.end
        self._file = self._open()
        for old in segments(self._logs)[1 : -self._kept]:
            os.unlink(segment_path(self._logs, old))

    def close(self) -> None:
        self._file.close()


def read_from(logs: str, offset: int, limit: int) -> tuple[int, bytes]:
    """(where they begin, bytes) from `offset` on, at most `limit` of them.

    They begin later than asked where that part of the output was dropped.
    """
    for start in segments(logs):
        end = start + os.path.getsize(segment_path(logs, start))
        if end <= offset:
            continue
        begin = max(start, offset)
        with open(segment_path(logs, start), "rb") as file:
            file.seek(begin - start)
            return begin, file.read(limit)
    return offset, b""


def read_all(logs: str, offset: int, chunk: int = 256 << 10) -> Iterator[tuple[int, bytes]]:
    """Everything from `offset` to the end, piece by piece."""
    while True:
        begin, data = read_from(logs, offset, chunk)
        if not data:
            return
        yield begin, data
        offset = begin + len(data)


def tail(logs: str, lines: int = 20, most: int = 64 << 10) -> list[str]:
    """The last lines of the output, as text; bytes that are none become U+FFFD."""
    data = b"".join(piece for _, piece in read_all(logs, max(0, end_of(logs) - most)))
    return data.decode("utf-8", "replace").replace("\r", "\n").splitlines()[-lines:]
