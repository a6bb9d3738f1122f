"""The laptop's memory of what it has hashed, and what has to be hashed before an upload."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO

from deploy.effects.scan import UNKNOWN, found_of
from deploy.effects.settings import laptop_folder
from deploy.effects.summing import Asked, summed
from deploy.plan.transfer import (
    FILE,
    FOLDER,
    LINK,
    Entry,
    Found,
    key_of,
    side_by_side,
)

MOST_MOVED = 200_000  # contents that lost their path and are looked for under another
SUM = len(UNKNOWN)


class Memory:
    """What is remembered of one folder: its last scan, each line behind its checksum.

    The first line is the scan's fingerprint.
    """

    def __init__(self, root: str, exclude: Iterable[str]) -> None:
        named = json.dumps([root, *exclude]).encode()
        self.folder = laptop_folder() / "uploads" / hashlib.sha256(named).hexdigest()[:24]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.known = self.folder / "known"
        self._note = self.folder / "known.json"
        self._looked = self.folder / "looked"  # the scan of an archive that was found to be good

    def version_of(self, fingerprint: str) -> str:
        """The ID that a scan with this fingerprint came to; "" if it is another one."""
        with contextlib.suppress(OSError, ValueError):
            note = json.loads(self._note.read_text())
            if note["fingerprint"] == fingerprint:
                return str(note["id"])
        return ""

    def remember_version(self, fingerprint: str, version: str) -> None:
        value = {"schema": 1, "fingerprint": fingerprint, "id": version}
        replace(self._note, [json.dumps(value)])

    def was_looked_into(self, fingerprint: str) -> bool:
        """Whether the archive of this scan was found to be good before."""
        with contextlib.suppress(OSError):
            return self._looked.read_text() == fingerprint
        return False

    def remember_look(self, fingerprint: str) -> None:
        replace(self._looked, [fingerprint])

    def remember(self, fingerprint: str, lines: Iterable[str]) -> None:
        replace(self.known, chain([fingerprint + "\n"], lines))

    def stands_for(self, version: str) -> bool:
        """Whether what is remembered is just what came to this version."""
        with self._lines() as (fingerprint, _):
            return bool(version) and self.version_of(fingerprint) == version

    def found(self) -> Iterator[Found]:
        """What is remembered, as a stream."""
        with self._lines() as (_, lines):
            for line in lines:
                yield remembered(line)

    def recall(self, scan: Path) -> Iterator[str]:
        """A scan's lines, behind the checksums of files that are what they were by size, mtime, inode."""
        with self._lines() as (_, known), scan.open(encoding="ascii") as scanned:
            for old, new in matched(known, scanned):
                if new:
                    yield old if old[SUM:] == new else UNKNOWN + new

    def changes(
        self, scan: Path, fingerprint: str, most: int, target: Path
    ) -> list[tuple[str, Found | None]]:
        """Keys of what is not as it is remembered, and what is there now.

        `target` gets what is to be remembered from now on. OverflowError where there are more
        changes than `most`.
        """
        found: list[tuple[str, Found | None]] = []

        def lines() -> Iterator[str]:
            for old, new in matched(known, scanned):
                if old[SUM:] == new:
                    yield old
                    continue
                each = found_of(new or old[SUM:])
                found.append((key_of(each), each if new else None))
                if len(found) > most:
                    raise OverflowError
                if new:
                    yield UNKNOWN + new

        with self._lines() as (_, known), scan.open(encoding="ascii") as scanned:
            replace(target, chain([fingerprint + "\n"], lines()))
        return found

    def learn_first(self, scan: Path, fingerprint: str, hashed: Iterable[str]) -> None:
        """Take over a whole scan, and the checksums of files that were hashed on the way."""
        self.remember(fingerprint, newest(self.recall(scan), iter(hashed)))

    def has_version(self) -> bool:
        """Whether a scan of this folder ever came to a version on a box."""
        return self._note.exists()

    def learn(self, hashed: Iterable[str]) -> None:
        """Take over the checksums of files that were hashed on the way: lines of ours, in order."""
        with self._lines() as (fingerprint, known):
            self.remember(fingerprint, newest(known, iter(hashed)))

    @contextlib.contextmanager
    def _lines(self) -> Iterator[tuple[str, Iterator[str]]]:
        """The fingerprint and the lines behind it; none where nothing is remembered."""
        try:
            file: IO[str] = self.known.open(encoding="ascii")
        except FileNotFoundError:
            yield "", iter(())
            return
        with file:
            yield file.readline().rstrip("\n"), file


def remembered(line: str) -> Found:
    sha256 = line[:SUM]
    return found_of(line[SUM:], "" if sha256 == UNKNOWN else sha256)


def matched(known: Iterator[str], scanned: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Lines of the memory and of a scan, two where they tell of one path, else "" for the other."""
    old, new = next(known, ""), next(scanned, "")
    while old and new:
        if old[SUM:] == new:  # the usual case, in which nobody looks at what it says
            yield old, new
            old, new = next(known, ""), next(scanned, "")
            continue
        here, there = key_of(found_of(old[SUM:])), key_of(found_of(new))
        yield old if here <= there else "", new if there <= here else ""
        if here <= there:
            old = next(known, "")
        if there <= here:
            new = next(scanned, "")
    yield from ((line, "") for line in chain([old] if old else [], known))
    yield from (("", line) for line in chain([new] if new else [], scanned))


def replace(path: Path, lines: Iterable[str]) -> None:
    """Write lines under another name, then rename: a kill leaves the old file or the new one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="ascii") as file:
            file.writelines(lines)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def newest(known: Iterable[str], fresh: Iterator[str]) -> Iterator[str]:
    """The lines of a memory, those of `fresh` in the place of the ones that tell of the same file."""
    line = next(fresh, "")
    for each in known:
        if line and line[SUM:] == each[SUM:]:
            yield line
            line = next(fresh, "")
        else:
            yield each


@dataclass
class Pathless:
    """Contents on the box that have no path here any more, and the sizes of files that are new here."""

    contents: dict[str, Entry] = field(default_factory=dict)  # by checksum
    new_sizes: set[int] = field(default_factory=set)

    def see(self, old: Entry | None, new: Found | None) -> None:
        if new is None and old is not None:
            if old.type == FILE and old.size and len(self.contents) < MOST_MOVED:
                self.contents[old.sha256] = old
        elif new is not None and old is None and new.type == FILE and not new.sha256:
            self.new_sizes.add(new.size)

    def sizes(self) -> set[int]:
        """Of new files that may be such contents under another path."""
        return self.new_sizes & {each.size for each in self.contents.values()}


def hash_what_may_be_there(
    root: str, found: Iterable[Found], base: Iterable[Entry], pathless: Pathless
) -> Iterator[Found]:
    """Hash files of which the box has one of the same path and size: they may be the same."""

    def asked() -> Iterator[Asked]:
        for old, new in side_by_side(base, found):
            pathless.see(old, new)
            if new is None:
                continue
            alike = old is not None and (old.type, old.size) == (new.type, new.size)
            yield new, alike and not new.sha256 and new.type not in (FOLDER, LINK)

    return summed(root, asked())


def hash_what_may_have_moved(root: str, found: Iterable[Found], sizes: set[int]) -> Iterator[Found]:
    """Hash new files that are as large as one that lost its path: they may be that one."""
    return summed(
        root,
        ((each, each.type == FILE and not each.sha256 and each.size in sizes) for each in found),
    )
