"""Carries out the plan of an upload: parts over the line, and the new manifest as it comes about."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import IO, Any, NamedTuple

from deploy.effects.packer import MANY, Packers
from deploy.effects.parts import Batch, Pack, Placed, file_blocks, looked_at_again, sha256_of_blocks
from deploy.effects.scan import scan_line
from deploy.effects.session import Session
from deploy.effects.streams import Streams
from deploy.effects.turns import threads_that_take_turns
from deploy.errors import DataError
from deploy.plan.transfer import (
    Change,
    Entry,
    Found,
    Step,
    boundary,
    ends_pack,
    entry_from,
    key_of,
    line_of_change,
    line_of_members,
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
    pack: str = ""  # of which the box makes this change itself


class Order(NamedTuple):
    """How a pack is to be sent."""

    key: str
    size: int  # bytes at most
    offset: int  # from which on it goes
    whole: str  # its checksum if the box has all of it


class SentPack(NamedTuple):
    """The changes that a pack brought, made when they are asked for."""

    members: list[Found]
    placed: list[Placed]
    sha256: str
    known_there: bool  # whether the box makes the same changes of it

    def change(self, which: int) -> Known:
        return in_pack(self.members[which], self.placed[which], self.sha256, self.known_there)


class SentFile(NamedTuple):
    """The one change that a file brought."""

    known: Known

    def change(self, which: int) -> Known:
        return self.known


OnItsWay = Future["SentPack | SentFile"]
Later = tuple[OnItsWay, int]  # a part on its way, and which of its changes


class Sender:
    """Goes through the steps once. `hashed` gets a scan's line of each file whose checksum is new."""

    def __init__(
        self, streams: Streams, root: str, incoming: Incoming, hashed: IO[str], told: Told
    ) -> None:
        self.streams, self.root, self.incoming, self.told = streams, root, incoming, told
        self._hashed = hashed
        self._packers = Packers()
        self._waiting: deque[Known | Later] = deque()  # in the order of the manifest
        self._on_their_way: deque[OnItsWay] = deque()
        self._members: list[Found] = []
        self._pack: OnItsWay = Future()  # the one that is being filled
        self._size = self._since_pack = 0  # bytes of the open pack, steps since the last one ended

    def changes(self, steps: Iterable[Step]) -> Generator[Change, None, None]:
        """Each change of the manifest, in order, once what it needs has been sent."""
        try:
            with threads_that_take_turns():
                yield from self._changes(steps)
        finally:
            self._packers.close()
            self._note_hashed(list(self._settled()))

    def _changes(self, steps: Iterable[Step]) -> Iterator[Change]:
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
            if len(self._members) == MANY:
                self._packers.warm()
            self._size += found.size + 1024
            if ends_pack(self._size, found.path):
                self._end_pack()
        self._since_pack += 1
        if self._since_pack >= WAITING:
            self._end_pack()

    def _end_pack(self) -> None:
        """The open pack's files begin to be read; a stream sends them when it is free."""
        self._since_pack = 0
        if not self._members:
            return
        members, key, size = (
            self._members,
            part_key(self._members),
            pack_size_at_most(self._members),
        )
        there, whole = self.incoming.get(key, (0, ""))
        offset = size if whole else boundary(members, there)
        pack = self._packers.pack(self.root, members, offset)
        sending = self.streams.do(
            partial(self._send_pack, Order(key, size, offset, whole), members, pack)
        )
        sending.add_done_callback(partial(pass_on, self._pack))
        self._on_their_way.append(self._pack)
        self._members, self._size, self._pack = [], 0, Future()

    def _settled(self) -> Iterator[Known]:
        """What waits no longer, from the first on."""
        settled: OnItsWay | None = None
        while self._waiting:
            first = self._waiting[0]
            if not isinstance(first, Known):
                part, which = first
                if part is not settled:  # asked once: there are thousands of changes in a pack
                    if not part.done() or part.exception():
                        return
                    settled, sent = part, part.result()
                first = sent.change(which)
            self._waiting.popleft()
            yield first

    def _tell(self, settled: Iterable[Known]) -> list[Change]:
        """Tell the box these changes, and return them."""
        known = list(settled)
        self._note_hashed(known)
        self.streams.changes(lines_told(known))
        return [each.change for each in known]

    def _note_hashed(self, known: Iterable[Known]) -> None:
        self._hashed.writelines([scan_line(each.hashed) for each in known if each.hashed])

    def _send_file(self, found: Found, session: Session) -> SentFile:
        """Send a large file; once more as it is by then, if it changed while it was read."""
        try:
            sent = self._send_as_it_is(found, session)
        except DataError:
            sent = self._send_as_it_is(looked_at_again(self.root, found), session)
        return SentFile(known_of(entry_from(sent), sent if sent[:6] == found[:6] else None))

    def _send_as_it_is(self, found: Found, session: Session) -> Found:
        key = part_key([found])
        there, whole = self.incoming.get(key, (0, ""))
        if whole and whole == found.sha256:
            self.told(found.path, found.size, 1)
            return found
        blocks = self._told_blocks(found.path, file_blocks(self.root, found))
        if whole:
            sha256 = self._must_still_be(key, whole, sha256_of_blocks(blocks))
        else:
            sha256 = session.part(key, found.size, min(there, found.size), blocks)
        self.told(found.path, 0, 1)
        return found._replace(sha256=sha256)

    def _told_blocks(self, path: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            yield block
            self.told(path, len(block), 0)

    def _must_still_be(self, key: str, whole: str, sha256: str) -> str:
        """The checksum of a part that the box has whole from the last attempt."""
        if sha256 != whole:
            self.incoming.pop(key)
            raise DataError(f"{self.root} changed since the last attempt", "try again")
        return whole

    def _send_pack(
        self, order: Order, members: list[Found], pack: Pack, session: Session
    ) -> SentPack:
        if order.whole:
            for batch in pack:
                self._tell_batch(batch)
            sha256 = self._must_still_be(order.key, order.whole, pack.sha256)
        else:
            sha256 = session.pack(order.key, order.size, order.offset, pack, self._tell_batch)
        known_there = order.offset == 0 and not order.whole and session.commits
        return SentPack(members, pack.placed, sha256, known_there)

    def _tell_batch(self, batch: Batch) -> None:
        self.told(batch.path, batch.size, batch.files)


def known_of(entry: Entry, hashed: Found | None = None) -> Known:
    return Known((key_of(entry), entry), hashed)


def lines_told(known: Iterable[Known]) -> Iterator[str]:
    """Each change as a line; of a pack that the box knows, how many come in a row."""
    for pack, alike in groupby(known, attrgetter("pack")):
        if pack:
            yield line_of_members(pack, sum(1 for _ in alike))
        else:
            yield from (line_of_change(*each.change) for each in alike)


def in_pack(found: Found, placed: Placed, pack: str, known_there: bool) -> Known:
    """A file as it was read; it is remembered if it still was what the scan had seen."""
    path, kind, mode, size, mtime, inode, _, target = found
    length, changed_at, sha256, offset = placed
    entry = Entry(path, kind, mode, length, changed_at, sha256, pack, offset)
    there = pack if known_there else ""
    if (size, mtime) != (length, changed_at):
        return Known((path, entry), None, there)
    return Known((path, entry), Found(path, kind, mode, size, mtime, inode, sha256, target), there)


def pass_on(to: Future[Any], done: Future[Any]) -> None:
    """Let one future end as another did."""
    if fault := done.exception():
        to.set_exception(fault)
    else:
        to.set_result(done.result())


def pack_size_at_most(members: Iterable[Found]) -> int:
    """An upper bound in bytes (a file may have grown since): what a partial pack can hold."""
    return sum(each.size + 8192 for each in members) + (1 << 20)
