"""Reads a set's files as what goes over the line: packs (tar) of small ones, and large ones whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from deploy.errors import DataError
from deploy.onbox.packing import END, ZEROS, Head, line_of_head, padded, tar_header
from deploy.plan.transfer import Found

BLOCK = 1 << 20
READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Batch(NamedTuple):
    """A piece of a pack: its files' heads as lines, their contents, and the tar that they make."""

    heads: bytes
    contents: bytes
    tar: bytes
    path: str  # of the last file
    files: int


def pack_batches(
    root: str, members: Iterable[Found], placed: list[tuple[Found, int]], cut: int = 0
) -> Iterator[Batch]:
    """A pack of small files in batches of about 1 MiB, the end of the tar as the last.

    `placed` gets each member as it was read, with its checksum, and its content's offset. A
    batch ends at `cut` as well (bytes of the tar), where an earlier attempt is gone on with.
    """
    heads: list[bytes] = []
    contents: list[bytes] = []
    tar: list[bytes] = []
    path, size, at = "", 0, 0
    for member in members:
        content, found = read_small(root, member)
        path, mode, length, seconds = found.path, found.mode, found.size, found.mtime // 10**9
        header = tar_header(path, mode, length, seconds)
        at += len(header)
        placed.append((found, at))
        at += padded(length)
        heads.append(line_of_head(Head(path, mode, length, seconds)))
        contents.append(content)
        tar += (header, content, ZEROS[: -length % 512])
        size += length + len(header)
        if size >= BLOCK or at == cut:
            yield _batch(heads, contents, tar, path)
            heads, contents, tar, size = [], [], [], 0
    yield _batch(heads, contents, tar, path)
    yield Batch(b"", b"", END, path, 0)


def _batch(heads: list[bytes], contents: list[bytes], tar: list[bytes], path: str) -> Batch:
    return Batch(b"".join(heads), b"".join(contents), b"".join(tar), path, len(heads))


def read_small(root: str, found: Found) -> tuple[bytes, Found]:
    """Content and what it turned out to be; read once more if it changed since the scan."""
    path = f"{root}/{found.path}"
    for _ in range(2):
        data, status = _read_at_once(path, found.size)
        if len(data) == found.size and status.st_mtime_ns == found.mtime:
            name, kind, mode, size, mtime, inode, _, target = found
            digest = hashlib.sha256(data).hexdigest()
            return data, Found(name, kind, mode, size, mtime, inode, digest, target)
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
