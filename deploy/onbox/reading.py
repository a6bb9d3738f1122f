"""Reads ranges of files ahead of their use, several at once and in order: hides a disk's latency."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict, deque
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Callable, Generic, Iterable, Iterator, NamedTuple, TypeVar

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


class _Pending(Generic[T]):
    """A job's result, once it is there."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._done = threading.Lock()
        self._done.acquire()

    def do(self) -> None:
        try:
            self._value = self._job()
            self._fault: BaseException | None = None
        except BaseException as no:
            self._fault = no
        self._done.release()

    def result(self) -> T:
        with self._done:
            if self._fault:
                raise self._fault
            return self._value


def ahead(jobs: Iterable[Callable[[], T]], readers: int) -> Iterator[T]:
    """The jobs' results, in the order asked for, with `readers` of them under way meanwhile."""
    todo: SimpleQueue[_Pending[T] | None] = SimpleQueue()
    pending: deque[_Pending[T]] = deque()
    threads: list[threading.Thread] = []
    try:
        for job in jobs:
            pending.append(_Pending(job))
            todo.put(pending[-1])
            if len(threads) < readers:
                threads.append(threading.Thread(target=_work_off, args=(todo,), daemon=True))
                threads[-1].start()
            if len(pending) > readers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        with contextlib.suppress(Empty):
            while True:
                todo.get_nowait()  # nobody waits for these any more
        for _ in threads:
            todo.put(None)
        for thread in threads:
            thread.join()


def _work_off(todo: SimpleQueue[Any]) -> None:
    for each in iter(todo.get, None):
        each.do()


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
