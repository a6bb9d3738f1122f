"""Copies plain files in parallel: small ones by many readers in shuffled order, large ones by ranges."""

from __future__ import annotations

import errno
import hashlib
import os
import random
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Iterable, NamedTuple

from .manifest import Entry
from .reading import CHUNK, Range, read_ahead
from .unpack import WRITE, damaged, write_verified

SMALL_READERS = 64
LARGE_READERS = 24  # ranges of CHUNK bytes each: 96 MiB, twice over at most


class Plain(NamedTuple):
    """A file to copy: its manifest entry, and the paths where its content may lie."""

    entry: Entry
    sources: tuple[str, ...]


def copy_plain(
    files: Iterable[Plain],
    root: str,
    done: Callable[[Plain], None],
    link: bool = False,
    verified: bool = True,
) -> None:
    """Copy (or hard-link, on one file system) below `root`, whose folders are there.

    Shuffled, because a network disk serves many folders at once but queues within one.
    """
    small: list[Plain] = []
    large: list[Plain] = []
    for each in files:
        (small if each.entry.size <= CHUNK else large).append(each)
    random.Random(0).shuffle(small)
    pending: deque[tuple[Plain, Future[None]]] = deque()
    with ThreadPoolExecutor(SMALL_READERS) as pool:
        for each in small:
            pending.append((each, pool.submit(_copy_small, each, root, link, verified)))
            if len(pending) > 2 * SMALL_READERS:
                _settle(pending, done)
        while pending:
            _settle(pending, done)
    for each in large:
        _copy_large(each, root, link, verified)
        done(each)


def _settle(pending: deque[tuple[Plain, Future[None]]], done: Callable[[Plain], None]) -> None:
    each, future = pending.popleft()
    future.result()
    done(each)


def _copy_small(each: Plain, root: str, link: bool, verified: bool) -> None:
    entry, target = each.entry, os.path.join(root, each.entry.path)
    for source in each.sources:
        data = _read_whole(source, entry.size)
        if data is None:
            continue
        if not verified and len(data) == entry.size:
            entry = entry._replace(sha256=hashlib.sha256(data).hexdigest())
        if len(data) == entry.size and hashlib.sha256(data).hexdigest() == entry.sha256:
            if not (link and _linked(source, target)):
                write_verified(target, data, entry, source)
            return
    raise damaged(entry, each.sources[0])


def _read_whole(path: str, size: int) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as no:
        if no.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    try:
        data = os.read(fd, size + 1)
        while len(data) <= size:
            more = os.read(fd, size + 1 - len(data))
            if not more:
                break
            data += more
        return data
    finally:
        os.close(fd)


def _copy_large(each: Plain, root: str, link: bool, verified: bool) -> None:
    target = os.path.join(root, each.entry.path)
    for source in each.sources:
        there = os.path.lexists(source) and os.lstat(source).st_size == each.entry.size
        if there and _copy_ranges(source, target, each.entry, link, verified):
            return
    raise damaged(each.entry, each.sources[0])


def _copy_ranges(source: str, target: str, entry: Entry, link: bool, verified: bool) -> bool:
    """Hash while copying; False (and nothing left) where the content is another."""
    linked = link and _linked(source, target)
    digest = hashlib.sha256()
    ranges = (Range(source, at, CHUNK) for at in range(0, entry.size, CHUNK))
    fd = os.open(os.devnull, os.O_WRONLY) if linked else os.open(target, WRITE, entry.mode | 0o400)
    try:
        for block in read_ahead(ranges, LARGE_READERS):
            digest.update(block)
            left = memoryview(block)
            while left:
                left = left[os.write(fd, left) :]
        if not linked:
            os.utime(fd, ns=(entry.mtime, entry.mtime))
    finally:
        os.close(fd)
    if verified and digest.hexdigest() != entry.sha256:
        os.unlink(target)
        return False
    return True


def _linked(source: str, target: str) -> bool:
    """True where a hard link was made."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as no:
        if no.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
            return False
        raise
    return True
