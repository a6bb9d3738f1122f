"""Copies plain files in parallel: small ones by many readers, large ones by ranges."""

from __future__ import annotations

import errno
import hashlib
import os
from functools import partial
from itertools import islice
from typing import Callable, Iterable, Iterator, NamedTuple

from .manifest import Entry
from .reading import CHUNK, Range, ahead, read_ahead, spread
from .refusal import Refusal
from .unpack import WRITE, Damaged, write_all, write_verified

SMALL = 1 << 20  # bytes: up to here a file is read at once, by one of
SMALL_READERS = 128
BATCH = 8  # small files that one reader takes at a time
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


class Plain(NamedTuple):
    """A file to copy: its manifest entry (without checksum: not verified), where it may lie."""

    entry: Entry
    sources: tuple[str, ...]


Done = Callable[[Plain], None]


def copy_plain(files: Iterable[Plain], root: str, done: Done, link: bool = False) -> None:
    """Copy (or hard-link, on one file system) below `root`, whose folders are there."""
    small: list[Plain] = []
    large: list[Plain] = []
    for each in files:
        (small if each.entry.size <= SMALL else large).append(each)
    by_path = {each.entry.path: each for each in small}
    small = [by_path[path] for path in spread(by_path)]
    batches = (small[at : at + BATCH] for at in range(0, len(small), BATCH))
    work = (partial(_copy_batch, batch, root, link) for batch in batches)
    for batch in ahead(work, SMALL_READERS):
        for each in batch:
            done(each)
    chosen = list(ahead((partial(_likely_source, each) for each in large), SMALL_READERS))
    _copy_large(list(zip(large, chosen)), root, done, link)


def _copy_batch(batch: list[Plain], root: str, link: bool) -> list[Plain]:
    for each in batch:
        _copy_small(each, root, link)
    return batch


def _copy_small(each: Plain, root: str, link: bool) -> None:
    entry, target = each.entry, os.path.join(root, each.entry.path)
    for source in each.sources:
        data = _read_whole(source, entry.size)
        if data is not None and _is_right(data, entry):
            if not (link and linked(source, target, entry.mode)):
                write_verified(target, data, entry, source)
            return
    raise _unlike(entry, each.sources[0])


def _is_right(data: bytes, entry: Entry) -> bool:
    same_size = len(data) == entry.size
    return same_size and entry.sha256 in ("", hashlib.sha256(data).hexdigest())


def _read_whole(path: str, size: int) -> bytes | None:
    """All of a file, or one byte more than `size` where it is longer; None where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as no:
        if no.errno in ABSENT:
            return None
        raise
    try:
        data = os.read(fd, size + 1)
        while len(data) < size:
            more = os.read(fd, size + 1 - len(data))
            if not more:
                break
            data += more
        return data
    finally:
        os.close(fd)


def _likely_source(each: Plain) -> str:
    """The first source of the right size."""
    for source in each.sources:
        try:
            if os.lstat(source).st_size == each.entry.size:
                return source
        except OSError as no:
            if no.errno not in ABSENT:
                raise
    raise _unlike(each.entry, each.sources[0])


def _copy_large(chosen: list[tuple[Plain, str]], root: str, done: Done, link: bool) -> None:
    """One after another, while ranges of the next ones are read already."""
    blocks = read_ahead(one for each, source in chosen for one in _ranges(source, each))
    for each, source in chosen:
        if not _write_ranges(each, source, root, blocks, link):
            _copy_other(each, source, root, link)
        done(each)


def _ranges(source: str, each: Plain) -> Iterator[Range]:
    return (Range(source, at, CHUNK) for at in range(0, each.entry.size, CHUNK))


def _copy_other(each: Plain, tried: str, root: str, link: bool) -> None:
    """The content lies elsewhere than was likely (a commit was under way): try the other places."""
    for source in each.sources:
        if source != tried and os.path.lexists(source):
            blocks = read_ahead(_ranges(source, each))
            if _write_ranges(each, source, root, blocks, link):
                return
    raise _unlike(each.entry, tried)


def _write_ranges(each: Plain, source: str, root: str, blocks: Iterator[bytes], link: bool) -> bool:
    """Hash while writing; False, and nothing left, where the content is another."""
    entry, target = each.entry, os.path.join(root, each.entry.path)
    link = link and linked(source, target, entry.mode)
    digest = hashlib.sha256()
    own = islice(blocks, len(range(0, entry.size, CHUNK)))
    fd = os.open(os.devnull, os.O_WRONLY) if link else os.open(target, WRITE, entry.mode | 0o400)
    try:
        size = _write_and_hash(fd, own, digest.update if entry.sha256 else len)
        if not link:
            os.utime(fd, ns=(entry.mtime, entry.mtime))
    finally:
        os.close(fd)
    if size >= entry.size and entry.sha256 in ("", digest.hexdigest()):
        return True
    os.unlink(target)
    return False


def _write_and_hash(fd: int, blocks: Iterator[bytes], update: Callable[[bytes], object]) -> int:
    """Both at once, as either takes a core; the bytes that came."""
    size = 0
    for block in ahead((partial(_hashed, block, update) for block in blocks), 1):
        write_all(fd, block)
        size += len(block)
    return size


def _hashed(block: bytes, update: Callable[[bytes], object]) -> bytes:
    update(block)
    return block


def _unlike(entry: Entry, source: str) -> Refusal:
    if entry.sha256:
        return Damaged(entry, source)
    return Refusal("DataError", f"{source} changed while it was staged", "stage it again")


def linked(source: str, target: str, mode: int) -> bool:
    """True where a hard link was made: not for a program or a read-only file, as a link has the
    mode that the file has on /data (0600)."""
    if mode & 0o700 != 0o600:
        return False
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as no:
        if no.errno in NO_LINKS:
            return False
        raise
    return True
