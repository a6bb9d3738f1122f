"""Reads a set's files as what goes over the line: packs (tar) of small ones, and large ones whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from deploy.errors import DataError
from deploy.onbox.packing import END, ZEROS, Head, line_of_head, padded, tar_header
from deploy.plan.transfer import Found

BLOCK = 1 << 20
READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Batch(NamedTuple):
    """A piece of a pack: its files' heads as lines and their contents; both empty where the box has it."""

    heads: bytes
    contents: bytes
    path: str  # of the last file
    files: int
    size: int  # bytes of the contents


class Placed(NamedTuple):
    """A file of a pack as it was read."""

    size: int  # bytes
    mtime: int  # ns
    sha256: str
    offset: int  # of its content in the pack


class Pack(Protocol):
    """Iterates once over a pack's batches; after that it knows what became of its files."""

    placed: list[Placed]
    sha256: str  # of the whole tar

    def __iter__(self) -> Iterator[Batch]: ...


class PackHere:
    """A pack of small files, read by this process in batches of about 1 MiB.

    The box has `offset` bytes of the tar already: a batch ends there, and the ones before it are
    only hashed.
    """

    def __init__(self, root: str, members: Iterable[Found], offset: int = 0) -> None:
        self.placed: list[Placed] = []
        self.sha256 = ""
        self._root, self._members, self._offset = root, members, offset

    def __iter__(self) -> Iterator[Batch]:
        digest, at, ends_at = hashlib.sha256(), 0, 0
        heads: list[bytes] = []
        contents: list[bytes] = []
        tar: list[bytes] = []
        last = None
        for last in self._members:
            content, size, mtime, sha256 = read_small(self._root, last)
            head = Head(last.path, last.mode, size, mtime)
            header = tar_header(last.path, last.mode, size, mtime // 10**9)
            ends_at += len(header)
            self.placed.append(Placed(size, mtime, sha256, ends_at))
            ends_at += padded(size)
            heads.append(line_of_head(head))
            contents.append(content)
            tar += (header, content, ZEROS[: -size % 512])
            if ends_at - at >= BLOCK or ends_at == self._offset:
                digest.update(b"".join(tar))
                yield self._batch(heads, contents, last, at)
                heads, contents, tar, at = [], [], [], ends_at
        digest.update(b"".join(tar))
        if last and heads:
            yield self._batch(heads, contents, last, at)
        digest.update(END)
        self.sha256 = digest.hexdigest()

    def _batch(self, heads: list[bytes], contents: list[bytes], last: Found, at: int) -> Batch:
        if at < self._offset:
            return Batch(b"", b"", last.path, len(heads), sum(map(len, contents)))
        content = b"".join(contents)
        return Batch(b"".join(heads), content, last.path, len(heads), len(content))


def read_small(root: str, found: Found) -> tuple[bytes, int, int, str]:
    """Content, size, mtime (ns) and SHA-256; read once more if it changed since the scan."""
    path = f"{root}/{found.path}"
    size, mtime = found.size, found.mtime
    for _ in range(2):
        data, status = _read_at_once(path, size)
        if len(data) == size and status.st_mtime_ns == mtime:
            return data, size, mtime, hashlib.sha256(data).hexdigest()
        size, mtime = status.st_size, status.st_mtime_ns
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
        return read_small(root, found)[3]
    return sha256_of_blocks(file_blocks(root, found))


def sha256_of_blocks(blocks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def changing(path: str) -> DataError:
    return DataError(f"{path} changes while it is read", "stop what writes it, then try again")
