"""Writes the files of packs by the manifest's offsets, each verified by its checksum as it is written."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from typing import Callable, Iterable, Iterator, NamedTuple

from .manifest import Entry
from .reading import CHUNK, Range, read_ahead
from .refusal import Refusal

WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Pack(NamedTuple):
    """A pack and what is wanted of it, sorted by offset."""

    path: str
    entries: list[Entry]


def write_packs(packs: Iterable[Pack], root: str, done: Callable[[Pack], None]) -> None:
    """Write what is wanted of each pack below `root`, whose folders are there; `done` hears of each.

    The next pack is being read while one is still written.
    """
    opened: deque[Pack] = deque()

    def ranges() -> Iterator[Range]:
        for pack in packs:
            opened.append(pack)
            yield from ranges_of(pack)
        # read_ahead has asked for the last range by now; its bytes are still to come

    blocks = read_ahead(ranges())
    block = next(blocks, b"")
    while opened:
        pack = opened.popleft()
        starts = [each.offset for each in ranges_of(pack)]
        for entry, data in contents(pack, starts, block, blocks):
            write_verified(os.path.join(root, entry.path), data, entry, pack.path)
        done(pack)
        block = next(blocks, b"")


def ranges_of(pack: Pack) -> Iterator[Range]:
    """The chunks that hold wanted entries; stretches that are not wanted are not read."""
    last = -1
    for entry in pack.entries:
        final = (entry.offset + max(1, entry.size) - 1) // CHUNK
        for chunk in range(max(last + 1, entry.offset // CHUNK), final + 1):
            yield Range(pack.path, chunk * CHUNK, CHUNK)
            last = chunk


def contents(
    pack: Pack, starts: list[int], block: bytes, blocks: Iterator[bytes]
) -> Iterator[tuple[Entry, bytes]]:
    """Each wanted entry with its bytes, cut from the chunks as they come."""
    at = 0
    for entry in pack.entries:
        while entry.offset >= starts[at] + CHUNK:
            block, at = next(blocks), at + 1
        begin = entry.offset - starts[at]
        data = block[begin : begin + entry.size]
        while len(data) < entry.size and at + 1 < len(starts):
            block, at = next(blocks), at + 1
            data += block[: entry.size - len(data)]
        yield entry, data


def write_verified(path: str, data: bytes, entry: Entry, source: str) -> None:
    """A new file with this content, mode and mtime; VerifyError where it is not what it should be."""
    if len(data) != entry.size or entry.sha256 not in ("", hashlib.sha256(data).hexdigest()):
        raise Damaged(entry, source)
    fd = os.open(path, WRITE, entry.mode | 0o400)
    try:
        write_all(fd, data)
        os.utime(fd, ns=(entry.mtime, entry.mtime))
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write until all is written, or the disk says why not."""
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, memoryview(data)[done:])


class Damaged(Refusal):
    """A content on /data is not what the manifest says."""

    def __init__(self, entry: Entry, source: str) -> None:
        super().__init__(
            "VerifyError",
            f"{entry.path!r} in {source} does not have the checksum of its manifest",
            "the same `fab upload` again mends it from the laptop's copy",
        )
