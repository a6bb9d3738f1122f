"""Reads a manifest in slices of whole lines: what can be told of many lines at once is told so."""

from __future__ import annotations

import contextlib
import os
import re
from functools import partial
from typing import Iterator, NamedTuple

from .manifest import USUAL, Entry, Header, entry_of, header_of, is_safe, usual_entry
from .reading import CHUNK, ahead, read_fully
from .refusal import Refusal
from .shelf import Shelf

SMALLEST, LARGEST, MOST = 64 << 10, 1 << 20, 4096  # bytes of a slice; slices of a manifest
READERS = 8
# No name can hold these: within a JSON string every quote has a backslash before it.
SIZES = re.compile(rb'"size": (\d+)')
PACK = re.compile(rb'", "pack": "([0-9a-f]{64})"')
PACKED_TEXT = '", "pack": "'
PACKED = PACKED_TEXT.encode()


class Slice(NamedTuple):
    """Some whole lines of a manifest, by where they stand in its file."""

    offset: int
    length: int


class Manifest(NamedTuple):
    """A manifest that is open for reading."""

    fd: int
    header: Header
    begin: int  # where its entries begin


@contextlib.contextmanager
def opened(shelf: Shelf, version: str) -> Iterator[Manifest]:
    """A version's manifest while the block lasts; Refusal where there is none or it is damaged."""
    path = shelf.version(version)
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise Refusal(
            "NoSuchRun", f"{shelf.name}: no version {version[:12]} on the box", "fab data"
        ) from None
    try:
        first = read_fully(fd, 4096, 0)
        line = first.partition(b"\n")[0]
        yield Manifest(fd, header_of(line.decode("ascii")), len(line) + 1)
    except (ValueError, TypeError) as no:
        raise Refusal("DataError", f"{path}: {no}", "upload the set again") from None
    finally:
        os.close(fd)


def read_slices(manifest: Manifest) -> Iterator[tuple[Slice, bytes]]:
    """Every entry's line, in slices that depend on the manifest alone; ValueError where some lack."""
    fd, header, begin = manifest
    size = os.fstat(fd).st_size
    least = max(SMALLEST, min(LARGEST, size // 64), size // MOST)
    blocks = ahead(
        (partial(read_fully, fd, CHUNK, at) for at in range(begin, size, CHUNK)), READERS
    )
    count, rest = 0, b""
    for block in blocks:
        rest += block
        while len(rest) >= least:
            end = rest.find(b"\n", least - 1) + 1
            if not end:
                break
            count += len(sizes_in(rest[:end]))
            yield Slice(begin, end), rest[:end]
            begin, rest = begin + end, rest[end:]
    count += len(sizes_in(rest))
    if rest:
        yield Slice(begin, len(rest)), rest
    if count != header.files + header.links:
        raise ValueError(f"{count} files and links, {header.files + header.links} were written")


def room_taken(manifest: Manifest, block: int) -> int:
    """Bytes on a file system with such blocks."""
    sizes = (size for _, lines in read_slices(manifest) for size in sizes_in(lines))
    return sum(-(-size // block) * block for size in sizes) + manifest.header.folders * block


def sizes_in(lines: bytes) -> list[int]:
    """Bytes of every file, link and archive."""
    return [int(size) for size in SIZES.findall(lines)]


def not_packed(lines: bytes) -> list[Entry]:
    """Folders, links, archives and the files that stand under their own names."""
    return [entry_of(line) for line in _lines(lines) if PACKED_TEXT not in line]


def packs_in(lines: bytes) -> set[str]:
    """The packs that these lines name; a line that is not as we write it is for `not_packed`."""
    return {each.decode() for each in set(PACK.findall(lines))}


def packed(lines: bytes) -> list[Entry]:
    """Files that lie in packs; the usual lines are all taken apart at once."""
    text = lines.decode("ascii")
    entries = [usual_entry(*found) for found in USUAL.findall(text) if found[5]]
    if len(entries) == text.count(PACKED_TEXT) and all(is_safe(each.path) for each in entries):
        return entries
    return [entry_of(line) for line in _lines(lines) if PACKED_TEXT in line]


def _lines(lines: bytes) -> list[str]:
    return lines.decode("ascii").splitlines(keepends=True)
