"""Reads ranges of files ahead of their use, several at once and in order: hides a disk's latency."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Callable, Iterable, Iterator, NamedTuple, TypeVar

# Measured at 10 ms a trip: the kernel asks for 128 KiB at a time whatever the range, so many short
# ranges keep more requests under way than a few long ones (8 of 4 MiB 147 MB/s, 64 of 1 MiB 536).
CHUNK = 1 << 20  # bytes of one range
READERS = 64  # memory is READERS * CHUNK twice over at most
OPEN_FILES = 64  # that are kept open for their next range
T = TypeVar("T")


class Range(NamedTuple):
    path: str
    offset: int
    length: int


class _File:
    def __init__(self) -> None:
        self.opening = threading.Lock()
        self.fd = -1
        self.users = 0


class Files:
    """Keeps the files open that were read last (an open costs a network disk 2 trips)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _File] = OrderedDict()

    def read(self, wanted: Range) -> bytes:
        """The range's bytes, fewer where the file ends before, none where there is no file."""
        with self._lock:
            file = self._files.setdefault(wanted.path, _File())
            self._files.move_to_end(wanted.path)
            file.users += 1
        try:
            with file.opening:
                if file.fd < 0:
                    file.fd = os.open(wanted.path, os.O_RDONLY | os.O_NOFOLLOW)
            return read_fully(file.fd, wanted.length, wanted.offset)
        except FileNotFoundError:
            return b""
        finally:
            with self._lock:
                file.users -= 1
                self._close_oldest(OPEN_FILES)

    def _close_oldest(self, keep: int) -> None:
        for path in list(self._files)[: max(0, len(self._files) - keep)]:
            if not self._files[path].users:
                file = self._files.pop(path)
                if file.fd >= 0:
                    os.close(file.fd)

    def close(self) -> None:
        with self._lock:
            self._close_oldest(0)


def read_fully(fd: int, length: int, offset: int) -> bytes:
    """As pread, and fewer bytes than `length` only where the file ends."""
    data = os.pread(fd, length, offset)
    while len(data) < length:
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def ahead(jobs: Iterable[Callable[[], T]], readers: int) -> Iterator[T]:
    """The jobs' results, in the order asked for, with `readers` of them under way meanwhile."""
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(readers) as pool:
        try:
            for job in jobs:
                pending.append(pool.submit(job))
                if len(pending) > readers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def read_ahead(ranges: Iterable[Range], readers: int = READERS) -> Iterator[bytes]:
    """The ranges' bytes, in the order asked for, with `readers` of them being read meanwhile."""
    files = Files()
    try:
        yield from ahead((partial(files.read, each) for each in ranges), readers)
    finally:
        files.close()


def spread(paths: Iterable[str]) -> list[str]:
    """In an order that keeps every folder busy from the first moment to the last.

    A network disk queues within one folder and serves many at once (measured at 10 ms a trip,
    128 readers, 20,000 files: shuffled 9.8 s, spread 6.0 s; folder by folder the looking
    alone takes 70 s).
    """
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        by_folder.setdefault(path.rpartition("/")[0], []).append(path)
    places = [
        ((rank + 0.5) / len(names), path)
        for names in by_folder.values()
        for rank, path in enumerate(sorted(names))
    ]
    return [path for _, path in sorted(places)]
