"""Reads a set's files as what goes over the line: packs (tar) of small ones, and large ones whole."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator

from deploy.errors import DataError
from deploy.plan.transfer import Entry, Found, entry_from

BLOCK = 1 << 20
READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
ZEROS = bytes(512)
TAIL = b"ustar\x0000".ljust(255, b"\0")  # from the magic to the end of a header


def pack_blocks(
    root: str, members: Iterable[Found], place: Callable[[Entry], None]
) -> Iterator[bytes]:
    """A tar of small files in blocks of about 1 MiB.

    `place` gets the entry of each member with checksum and offset; its pack is not known yet.
    """
    block, size, start = [], 0, 0
    for member in members:
        data, found = read_small(root, member)
        header = tar_header(found.path, found.mode, found.size, found.mtime // 10**9)
        padding = ZEROS[: -len(data) % 512]
        place(entry_from(found)._replace(offset=start + len(header)))
        block += [header, data, padding]
        added = len(header) + len(data) + len(padding)
        size, start = size + added, start + added
        if size >= BLOCK:
            yield b"".join(block)
            block, size = [], 0
    yield b"".join([*block, bytes(1024)])


def tar_header(path: str, mode: int, size: int, mtime: int) -> bytes:
    """One header block of a plain file, as any tar reads it (POSIX.1-1988, ustar).

    `tarfile` makes the long forms; for the usual ones it is five times slower than this.
    """
    name = path.encode("utf-8", "surrogateescape")
    if len(name) > 100 or not 0 <= mtime < 8**11 or size >= 8**11:
        info = tarfile.TarInfo(path)
        info.mode, info.size, info.mtime = mode, size, max(0, mtime)
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    numbers = b"%07o\x000000000\x000000000\x00%011o\x00%011o\x00" % (mode, size, mtime)
    head = name.ljust(100, b"\0") + numbers
    checksum = sum(head) + 8 * 32 + ord("0") + sum(TAIL)
    return head + b"%06o\x00 0" % checksum + bytes(100) + TAIL


def read_small(root: str, found: Found) -> tuple[bytes, Found]:
    """Content and what it turned out to be; read once more if it changed since the scan."""
    path = os.path.join(root, found.path)
    for _ in range(2):
        data, status = _read_at_once(path, found.size)
        if len(data) == found.size and status.st_mtime_ns == found.mtime:
            return data, found._replace(sha256=hashlib.sha256(data).hexdigest())
        found = found._replace(size=status.st_size, mtime=status.st_mtime_ns)
    raise changing(path)


def _read_at_once(path: str, size: int) -> tuple[bytes, os.stat_result]:
    try:
        fd = os.open(path, READ)
        try:
            data = os.read(fd, size + 1)
            while len(data) < size and (more := os.read(fd, size + 1 - len(data))):
                data += more
            return data, os.fstat(fd)
        finally:
            os.close(fd)
    except OSError as no:
        raise DataError(f"{path}: {no.strerror}", "mend it, or --exclude it") from no


def file_blocks(root: str, found: Found) -> Iterator[bytes]:
    """A large file in blocks of 1 MiB; DataError at its end if it changed while it was read."""
    path = os.path.join(root, found.path)
    try:
        with open(path, "rb", buffering=0) as file:
            left = found.size
            while left and (block := file.read(min(BLOCK, left))):
                left -= len(block)
                yield block
            status = os.fstat(file.fileno())
    except OSError as no:
        raise DataError(f"{path}: {no.strerror}", "mend it, or --exclude it") from no
    if left or (status.st_size, status.st_mtime_ns) != (found.size, found.mtime):
        raise changing(path)


def looked_at_again(root: str, found: Found) -> Found:
    status = os.stat(os.path.join(root, found.path))
    return found._replace(size=status.st_size, mtime=status.st_mtime_ns, sha256="")


def sha256_of(root: str, found: Found) -> str:
    """The checksum of a file's content."""
    if found.size < BLOCK:
        return read_small(root, found)[1].sha256
    digest = hashlib.sha256()
    for block in file_blocks(root, found):
        digest.update(block)
    return digest.hexdigest()


def changing(path: str) -> DataError:
    return DataError(f"{path} changes while it is read", "stop what writes it, then try again")
