"""Carries out the plan of an upload: parts over the line, and the new manifest as it comes about."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import IO

from deploy.effects.parts import Batch, file_blocks, looked_at_again, pack_batches
from deploy.effects.scan import scan_line
from deploy.effects.session import Session
from deploy.errors import DataError
from deploy.plan.transfer import (
    Change,
    Checker,
    Entry,
    Found,
    Header,
    Step,
    boundary,
    changed,
    ends_pack,
    entry_from,
    header_line,
    key_of,
    line_of,
    line_of_change,
    part_key,
)

Incoming = dict[str, list[object]]  # key → [bytes on the box, SHA-256 or ""]
Told = Callable[[str, int, int], None]  # path, bytes and files that have gone since the last time
AT_ONCE = 1000  # changes
WAITING = 200_000  # changes that wait for the end of a pack


class Sender:
    """Goes through the steps once. `hashed` gets a scan's line of each file whose checksum is new."""

    def __init__(
        self, session: Session, root: str, incoming: Incoming, hashed: IO[str], told: Told
    ) -> None:
        self.session, self.root, self.incoming, self.told = session, root, incoming, told
        self._hashed = hashed
        self._known: list[tuple[Change | None, Found | None]] = []  # None: in the open pack
        self._members: list[Found] = []
        self._size = 0

    def changes(self, steps: Iterable[Step]) -> Generator[Change, None, None]:
        """Each change of the manifest, in order, once what it needs has been sent."""
        try:
            for step in steps:
                self._do(step)
                if not self._members and len(self._known) >= AT_ONCE:
                    yield from self._flush()
            self._end_pack()
            yield from self._flush()
        finally:
            self._note_hashed()

    def _do(self, step: Step) -> None:
        found, entry = step.found, step.entry
        if step.action == "remove" and entry:
            self._known.append(((key_of(entry), None), None))
        elif step.action in ("note", "reuse") and found:
            self._add(entry_from(found, entry), None)
        elif step.action == "file" and found:
            sent = self._send_file(found)
            self._add(entry_from(sent), sent if sent.mtime == found.mtime else None)
        elif step.action == "pack" and found:
            self._members.append(found)
            self._known.append((None, None))
            self._size += found.size + 1024
            if ends_pack(self._size, found.path) or len(self._known) >= WAITING:
                self._end_pack()

    def _add(self, entry: Entry, hashed: Found | None) -> None:
        self._known.append(((key_of(entry), entry), hashed))

    def _flush(self) -> list[Change]:
        """Tell the box the changes that are known by now, and return them."""
        self._note_hashed()
        known = [change for change, _ in self._known if change]
        self._known = []
        self.session.changes("".join([line_of_change(key, entry) for key, entry in known]))
        return known

    def _note_hashed(self) -> None:
        lines = [scan_line(hashed) for _, hashed in self._known if hashed]
        self._hashed.writelines(lines)
        self._known = [(change, None) for change, _ in self._known]

    def _send_file(self, found: Found) -> Found:
        """Send a large file; once more as it is by then, if it changed while it was read."""
        try:
            return self._send_as_it_is(found)
        except DataError:
            return self._send_as_it_is(looked_at_again(self.root, found))

    def _send_as_it_is(self, found: Found) -> Found:
        key = part_key([found])
        there, whole = self.incoming.get(key, [0, ""])
        if whole and whole == found.sha256:
            self.told(found.path, found.size, 1)
            return found
        blocks = self._told_blocks(found.path, file_blocks(self.root, found))
        if whole:
            sha256 = self._must_still_be(key, str(whole), blocks)
        else:
            sha256 = self.session.part(key, found.size, min(int(str(there)), found.size), blocks)
        self.told(found.path, 0, 1)
        return found._replace(sha256=sha256)

    def _told_blocks(self, path: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            yield block
            self.told(path, len(block), 0)

    def _must_still_be(self, key: str, whole: str, blocks: Iterable[bytes]) -> str:
        """The checksum of a part that the box has whole from the last attempt."""
        digest = hashlib.sha256()
        for block in blocks:
            digest.update(block)
        if digest.hexdigest() != whole:
            self.incoming.pop(key)
            raise DataError(f"{self.root} changed since the last attempt", "try again")
        return whole

    def _end_pack(self) -> None:
        if not self._members:
            return
        members, placed = self._members, list[tuple[Found, int]]()
        sha256 = self._send_pack(members, placed)
        packed = zip(members, placed, strict=True)
        self._known = [
            (known if known[0] else self._in_pack(*next(packed), sha256)) for known in self._known
        ]
        self._members, self._size = [], 0

    def _send_pack(self, members: list[Found], placed: list[tuple[Found, int]]) -> str:
        key = part_key(members)
        there, whole = self.incoming.get(key, [0, ""])
        offset = 0 if whole else boundary(members, int(str(there)))
        batches = self._told_batches(pack_batches(self.root, members, placed, offset))
        if whole:
            return self._must_still_be(key, str(whole), (batch.tar for batch in batches))
        return self.session.pack(key, pack_size_at_most(members), offset, batches)

    def _in_pack(
        self, asked: Found, placed: tuple[Found, int], pack: str
    ) -> tuple[Change, Found | None]:
        found, offset = placed
        path, kind, mode, size, mtime, _, sha256, _ = found
        same = (asked.size, asked.mtime) == (size, mtime)
        entry = Entry(path, kind, mode, size, mtime, sha256, pack, offset)
        return (path, entry), found if same else None

    def _told_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield batch
            self.told(batch.path, len(batch.contents), batch.files)


def pack_size_at_most(members: Iterable[Found]) -> int:
    """An upper bound in bytes (a file may have grown since): what a partial pack can hold."""
    return sum(each.size + 8192 for each in members) + (1 << 20)


def write_manifest(
    base: Iterable[Entry], changes: Iterable[Change], folder: Path, zip_names: str
) -> tuple[Path, str, str, Header]:
    """The new version's manifest as a file, its SHA-256, the version's ID, and its header."""
    body, whole, check = folder / "body", folder / "manifest", Checker()
    with body.open("w", encoding="ascii") as file:
        for _, entry in changed(base, changes):
            if entry is not None:
                check.add(entry)
                file.write(line_of(entry))
    header = check.header(round(time.time(), 3), zip_names)
    with whole.open("wb") as file, body.open("rb") as rest:
        file.write(header_line(header).encode())
        shutil.copyfileobj(rest, file, 1 << 20)
    digest = hashlib.sha256()
    with whole.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return whole, digest.hexdigest(), check.version(), header
