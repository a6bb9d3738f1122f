"""How small files lie in a pack, a plain tar, and how they travel: without what both sides can make.

A tar spends 512 bytes and the padding on each file, a sixth of a set of small ones. So heads and
contents go over the line, and both sides make the same tar of them. The box also makes the lines of
the manifest: nothing is in them that it has not read.
"""

from __future__ import annotations

import hashlib
from typing import Iterator, NamedTuple

from .manifest import FILE, Entry

ZEROS = bytes(1024)
END = bytes(1024)  # of a tar
TAIL = b"ustar\x0000".ljust(255, b"\0")  # from the magic to the end of a header
SPACES_AND_TAIL = 8 * 32 + ord("0") + sum(TAIL)  # what is in every checksum


class Head(NamedTuple):
    """What is said of a file before its content."""

    path: str
    mode: int
    size: int  # bytes
    mtime: int  # ns since 1970


def tar_header(path: str, mode: int, size: int, mtime: int) -> bytes:
    """The header of a plain file, as any tar reads it (POSIX.1-1988, ustar); `mtime` in seconds.

    `tarfile` makes the long forms; for the usual ones it is five times slower than this.
    """
    name = path.encode("utf-8", "surrogateescape")
    if len(name) > 100 or not 0 <= mtime < 8**11 or size >= 8**11:
        import tarfile  # late: hardly ever needed

        info = tarfile.TarInfo(path)
        info.mode, info.size, info.mtime = mode, size, max(0, mtime)
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    numbers = b"%07o\x000000000\x000000000\x00%011o\x00%011o\x00" % (mode, size, mtime)
    head = name.ljust(100, b"\0") + numbers
    return b"%b%06o\x00 0%b%b" % (head, sum(head) + SPACES_AND_TAIL, ZEROS[:100], TAIL)


def header_size(path: str, mtime: int) -> int:
    """Bytes of the header before a file's content; `mtime` in seconds."""
    plain = len(path) <= 25 or len(path.encode("utf-8", "surrogateescape")) <= 100
    return 512 if plain and 0 <= mtime < 8**11 else len(tar_header(path, 0, 0, mtime))


def padded(size: int) -> int:
    """Bytes that a content of `size` takes in a tar."""
    return -(-size // 512) * 512


def line_of_head(head: Head) -> bytes:
    """For the line; ended by a NUL, which no path holds."""
    path, mode, size, mtime = head
    return b"%o %d %d %b\0" % (mode, size, mtime, path.encode("utf-8", "surrogateescape"))


def heads_of(lines: bytes) -> Iterator[Head]:
    """The heads of such lines; ValueError where they are none."""
    for line in lines.split(b"\0")[:-1]:
        mode, size, mtime, path = line.split(b" ", 3)
        yield Head(
            path.decode("utf-8", "surrogateescape"), int(mode, 8) & 0o777, int(size), int(mtime)
        )


class Inventory:
    """What lies where in a tar that is made piece by piece, as entries without the pack's name."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._end = 0  # of the tar by now

    def add(self, head: Head, header: int, content: bytes) -> None:
        """The next file, its content behind a header of so many bytes."""
        path, mode, size, mtime = head
        begin, digest = self._end + header, hashlib.sha256(content).hexdigest()
        self.entries.append(Entry(path, FILE, mode, size, mtime, digest, "", begin))
        self._end = begin + padded(size)


def tar_of(lines: bytes, contents: bytes, inventory: Inventory | None = None) -> bytes:
    """The piece of a tar that these heads and contents make; ValueError where they don't fit."""
    pieces: list[bytes] = []
    at = 0
    for head in heads_of(lines):
        path, mode, size, mtime = head
        if not 0 <= size <= len(contents) - at:
            raise ValueError(f"{path!r} is longer than what came of it")
        header, content = tar_header(path, mode, size, mtime // 10**9), contents[at : at + size]
        pieces += (header, content, ZEROS[: -size % 512])
        at += size
        if inventory:
            inventory.add(head, len(header), content)
    if at != len(contents):
        raise ValueError("more came than belongs to the files")
    return b"".join(pieces)
