"""Writes the files of packs by the manifest's offsets, each verified by its checksum as it is written."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from typing import Any, Iterable, Iterator, NamedTuple

from .crew import Hand
from .manifest import Entry
from .reading import CHUNK, Range, read_ahead, read_fully
from .refusal import Refusal
from .shelf import Shelf
from .slices import Slice, packed

WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
NEAR = 64 << 10  # bytes that are rather read than skipped


class Run(NamedTuple):
    """Entries that lie close together in one pack: they are read at once."""

    pack: str
    offset: int
    length: int
    entries: list[Entry]


def runs_of(entries: Iterable[Entry]) -> list[Run]:
    """Packed entries by pack and offset, in runs of at most CHUNK bytes or of one entry."""
    runs: list[Run] = []
    run: list[Entry] = []
    pack, begin, end = "", 0, 0
    for each in sorted(entries, key=lambda each: (each.pack, each.offset)):
        upto = each.offset + each.size
        if each.pack != pack or each.offset > end + NEAR or upto - begin > CHUNK:
            if run:
                runs.append(Run(pack, begin, end - begin, run))
            pack, begin, end, run = each.pack, each.offset, upto, []
        run.append(each)
        end = max(end, upto)
    if run:
        runs.append(Run(pack, begin, end - begin, run))
    return runs


def write_slices(
    hand: Hand, manifest: int, shelf: Shelf, root: str, readers: int, again: bool
) -> Iterator[Any]:
    """Write what is packed of each slice that the hand takes; tells [offset, length, bytes, path].

    The next ones are being read while one is still written. `manifest` is an open file; `again`:
    an earlier attempt may have left some of the files.
    """
    wanted: deque[tuple[Slice, Run, bool]] = deque()

    def ranges() -> Iterator[Range]:
        for piece in iter(hand.take, None):
            entries = packed(read_fully(manifest, piece[1], piece[0]))
            if again:
                drop(root, entries)
            runs = runs_of(entries)
            for run in runs:
                wanted.append((Slice(*piece), run, run is runs[-1]))
                yield Range(shelf.pack(run.pack), run.offset, run.length)

    size = 0
    with contextlib.closing(Writer(root)) as writer:
        for block in read_ahead(ranges(), readers):
            hand.check()
            part, run, is_last = wanted.popleft()
            writer.write(run, block, shelf.pack(run.pack))
            size += sum(each.size for each in run.entries)
            if is_last:
                yield [part.offset, part.length, size, run.entries[-1].path]
                size = 0


def drop(root: str, entries: Iterable[Entry]) -> None:
    """Remove what an interrupted attempt left of files that are not known as whole."""
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(root, entry.path))


def contents(path: str, entries: Iterable[Entry]) -> Iterator[tuple[Entry, bytes]]:
    """Each of one pack's entries with its bytes, in the order in which they lie there."""
    runs = runs_of(entries)
    blocks = read_ahead(Range(path, each.offset, each.length) for each in runs)
    for run, block in zip(runs, blocks):
        for each in run.entries:
            yield each, block[each.offset - run.offset :][: each.size]


class Writer:
    """Writes files below `root`, whose folders are there; the folder written to last stays open."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder: str | None = None
        self._fd = -1

    def write(self, run: Run, block: bytes, source: str) -> None:
        """The run's files out of its bytes; Damaged where one is not what it should be."""
        view = memoryview(block)
        for each in run.entries:
            folder, _, name = each.path.rpartition("/")
            if folder != self._folder:
                self._open(folder)
            at = each.offset - run.offset
            write_verified(name, view[at : at + each.size], each, source, self._fd)

    def _open(self, folder: str) -> None:
        self.close()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        self._fd, self._folder = os.open(os.path.join(self._root, folder), flags), folder

    def close(self) -> None:
        if self._folder is not None:
            os.close(self._fd)
        self._folder = None


def write_verified(
    path: str, data: bytes | memoryview, entry: Entry, source: str, folder: int | None = None
) -> None:
    """A new file with this content, mode and mtime; VerifyError where it is not what it should be."""
    if len(data) != entry.size or entry.sha256 not in ("", hashlib.sha256(data).hexdigest()):
        raise Damaged(entry, source)
    fd = os.open(path, WRITE, entry.mode | 0o400, dir_fd=folder)
    try:
        write_all(fd, data)
        os.utime(fd, ns=(entry.mtime, entry.mtime))
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
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
