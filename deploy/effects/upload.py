"""Carries out the plan of an upload: parts over the line, and the new manifest as it comes about."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from deploy.effects.parts import Batch, file_blocks, looked_at_again, pack_batches
from deploy.effects.scan import scan_line
from deploy.effects.session import Session
from deploy.effects.streams import Streams
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

Incoming = dict[str, tuple[int, str]]  # key → bytes on the box, and SHA-256 or ""
Told = Callable[[str, int, int], None]  # path, bytes and files that have gone since the last time
AT_ONCE = 1000  # changes
WAITING = 200_000  # changes that may wait for the end of a pack


class Known(NamedTuple):
    """A change, and the file whose checksum became known with it, as a scan has it."""

    change: Change
    hashed: Found | None = None


Later = tuple["Future[list[Known]]", int]  # a part on its way, and which of its changes


class Sender:
    """Goes through the steps once. `hashed` gets a scan's line of each file whose checksum is new."""

    def __init__(
        self, streams: Streams, root: str, incoming: Incoming, hashed: IO[str], told: Told
    ) -> None:
        self.streams, self.root, self.incoming, self.told = streams, root, incoming, told
        self._hashed = hashed
        self._waiting: deque[Known | Later] = deque()  # in the order of the manifest
        self._on_their_way: deque[Future[list[Known]]] = deque()
        self._members: list[Found] = []
        self._pack: Future[list[Known]] = Future()  # the one that is being filled
        self._size = self._since_pack = 0  # bytes of the open pack, steps since the last one ended

    def changes(self, steps: Iterable[Step]) -> Generator[Change, None, None]:
        """Each change of the manifest, in order, once what it needs has been sent."""
        try:
            for step in steps:
                self._do(step)
                while self._has_to_wait():
                    self._on_their_way.popleft().result()  # or its error
                    yield from self._tell(self._settled())
                if len(self._waiting) >= AT_ONCE and not self._members and not self._on_their_way:
                    yield from self._tell(self._settled())
            self._end_pack()
            for part in self._on_their_way:
                part.result()
                yield from self._tell(self._settled())
            yield from self._tell(self._settled())
        finally:
            self._note_hashed(list(self._settled()))

    def _has_to_wait(self) -> bool:
        """Whether enough is on its way, or too much waits for it."""
        many = len(self._waiting) > 2 * WAITING
        return len(self._on_their_way) > (0 if many else len(self.streams))

    def _do(self, step: Step) -> None:
        found, entry = step.found, step.entry
        if step.action == "remove" and entry:
            self._waiting.append(Known((key_of(entry), None)))
        elif step.action in ("note", "reuse") and found:
            self._waiting.append(known_of(entry_from(found, entry)))
        elif step.action == "file" and found:
            part = self.streams.do(partial(self._send_file, found))
            self._on_their_way.append(part)
            self._waiting.append((part, 0))
        elif step.action == "pack" and found:
            self._waiting.append((self._pack, len(self._members)))
            self._members.append(found)
            self._size += found.size + 1024
            if ends_pack(self._size, found.path):
                self._end_pack()
        self._since_pack += 1
        if self._since_pack >= WAITING:
            self._end_pack()

    def _end_pack(self) -> None:
        self._since_pack = 0
        if not self._members:
            return
        sending = self.streams.do(partial(self._send_pack, self._members))
        sending.add_done_callback(partial(pass_on, self._pack))
        self._on_their_way.append(self._pack)
        self._members, self._size, self._pack = [], 0, Future()

    def _settled(self) -> Iterator[Known]:
        """What waits no longer, from the first on."""
        while self._waiting:
            first = self._waiting[0]
            if not isinstance(first, Known):
                part, which = first
                if not part.done() or part.exception():
                    return
                first = part.result()[which]
            self._waiting.popleft()
            yield first

    def _tell(self, settled: Iterable[Known]) -> list[Change]:
        """Tell the box these changes, and return them."""
        known = list(settled)
        self._note_hashed(known)
        changes = [each.change for each in known]
        self.streams.changes(line_of_change(key, entry) for key, entry in changes)
        return changes

    def _note_hashed(self, known: Iterable[Known]) -> None:
        self._hashed.writelines([scan_line(each.hashed) for each in known if each.hashed])

    def _send_file(self, found: Found, session: Session) -> list[Known]:
        """Send a large file; once more as it is by then, if it changed while it was read."""
        try:
            sent = self._send_as_it_is(found, session)
        except DataError:
            sent = self._send_as_it_is(looked_at_again(self.root, found), session)
        return [known_of(entry_from(sent), sent if sent.mtime == found.mtime else None)]

    def _send_as_it_is(self, found: Found, session: Session) -> Found:
        key = part_key([found])
        there, whole = self.incoming.get(key, (0, ""))
        if whole and whole == found.sha256:
            self.told(found.path, found.size, 1)
            return found
        blocks = self._told_blocks(found.path, file_blocks(self.root, found))
        if whole:
            sha256 = self._must_still_be(key, whole, blocks)
        else:
            sha256 = session.part(key, found.size, min(there, found.size), blocks)
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

    def _send_pack(self, members: list[Found], session: Session) -> list[Known]:
        key, placed = part_key(members), list[tuple[Found, int]]()
        there, whole = self.incoming.get(key, (0, ""))
        offset = 0 if whole else boundary(members, there)
        batches = self._told_batches(pack_batches(self.root, members, placed, offset))
        if whole:
            pack = self._must_still_be(key, whole, (batch.tar for batch in batches))
        else:
            pack = session.pack(key, pack_size_at_most(members), offset, batches)
        return [
            in_pack(asked, found, offset, pack)
            for asked, (found, offset) in zip(members, placed, strict=True)
        ]

    def _told_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield batch
            self.told(batch.path, len(batch.contents), batch.files)


def known_of(entry: Entry, hashed: Found | None = None) -> Known:
    return Known((key_of(entry), entry), hashed)


def in_pack(asked: Found, found: Found, offset: int, pack: str) -> Known:
    """A file as it was read; it is remembered if it still was what the scan had seen."""
    path, kind, mode, size, mtime, _, sha256, _ = found
    same = (asked.size, asked.mtime) == (size, mtime)
    entry = Entry(path, kind, mode, size, mtime, sha256, pack, offset)
    return Known((path, entry), found if same else None)


def pass_on(to: Future[Any], done: Future[Any]) -> None:
    """Let one future end as another did."""
    if fault := done.exception():
        to.set_exception(fault)
    else:
        to.set_result(done.result())


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
