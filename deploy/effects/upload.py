"""Carries out the plan of an upload: parts over the line, then the manifest's changes, then the commit."""

from __future__ import annotations

import hashlib
import heapq
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from deploy.effects.parts import file_blocks, looked_at_again, pack_blocks
from deploy.effects.session import Session
from deploy.errors import DataError
from deploy.plan.transfer import (
    Checker,
    Entry,
    Found,
    Header,
    Step,
    addition,
    apply_changes,
    ends_pack,
    entry_from,
    header_line,
    key_of_change,
    line_of,
    part_key,
    removal,
)

Incoming = dict[str, list[Any]]  # key → [bytes on the box, SHA-256 or ""]


class Sender:
    """Goes through the steps once; what changes in the manifest is spooled to two sorted files."""

    def __init__(
        self,
        session: Session,
        root: str,
        incoming: Incoming,
        folder: Path,
        told: Callable[[str, int], None],
    ) -> None:
        self.session, self.root, self.incoming, self.told = session, root, incoming, told
        self.others_path, self.packed_path = folder / "others", folder / "packed"
        self._others = self.others_path.open("w", encoding="ascii")
        self._packed = self.packed_path.open("w", encoding="ascii")
        self._members: list[Found] = []
        self._size = 0

    def run(self, steps: Iterable[Step]) -> None:
        try:
            for step in steps:
                self._do(step)
            self._end_pack()
        finally:
            self._others.close()
            self._packed.close()

    def _do(self, step: Step) -> None:
        found, entry = step.found, step.entry
        if step.action == "remove" and entry:
            self._others.write(removal(entry))
        elif step.action in ("note", "reuse") and found:
            self._others.write(addition(entry_from(found, entry)))
        elif step.action == "file" and found:
            self._others.write(addition(entry_from(self._send_file(found))))
        elif step.action == "pack" and found:
            self._members.append(found)
            self._size += found.size + 1024
            if ends_pack(self._size, found.path):
                self._end_pack()

    def _send_file(self, found: Found) -> Found:
        """Send a large file; once more as it is by then, if it changed while it was read."""
        try:
            return self._send_as_it_is(found)
        except DataError:
            return self._send_as_it_is(looked_at_again(self.root, found))

    def _send_as_it_is(self, found: Found) -> Found:
        key = part_key([found])
        if self._is_whole(key, found.sha256):
            self.told(found.path, found.size)
            return found
        blocks = self._told_blocks(found.path, file_blocks(self.root, found))
        return found._replace(sha256=self._send(key, found.size, blocks))

    def _told_blocks(self, path: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            yield block
            self.told(path, len(block))

    def _is_whole(self, key: str, sha256: str) -> bool:
        return bool(sha256) and self.incoming.get(key, [0, ""])[1] == sha256

    def _send(self, key: str, size: int, blocks: Iterable[bytes]) -> str:
        there, whole = self.incoming.get(key, [0, ""])
        if not whole:
            return self.session.part(key, size, min(there, size), blocks)
        digest = hashlib.sha256()
        for block in blocks:
            digest.update(block)
        if digest.hexdigest() != whole:
            self.incoming.pop(key)
            raise DataError(f"{self.root} changed since the last attempt", "try again")
        return str(whole)

    def _end_pack(self) -> None:
        if not self._members:
            return
        placed: list[Entry] = []
        members = self._told_members(self._members)
        size = pack_size_at_most(self._members)
        sha256 = self._send(
            part_key(self._members), size, pack_blocks(self.root, members, placed.append)
        )
        self._packed.writelines(addition(each._replace(pack=sha256)) for each in placed)
        self._members, self._size = [], 0

    def _told_members(self, members: list[Found]) -> Iterator[Found]:
        for each in members:
            yield each
            self.told(each.path, each.size)


def pack_size_at_most(members: Iterable[Found]) -> int:
    """An upper bound in bytes (a file may have grown since): what a partial pack can hold."""
    return sum(each.size + 8192 for each in members) + (1 << 20)


def merged_changes(sender: Sender) -> Iterator[str]:
    """The changes of both spools in the order of a manifest."""
    with sender.others_path.open() as others, sender.packed_path.open() as packed:
        yield from heapq.merge(others, packed, key=key_of_change)


def write_manifest(
    base: Iterable[Entry], changes: Iterable[str], folder: Path, zip_names: str
) -> tuple[Path, str, str, Header]:
    """The new version's manifest as a file, its SHA-256, the version's ID, and its header."""
    body, whole, check = folder / "body", folder / "manifest", Checker()
    with body.open("w", encoding="ascii") as file:
        for entry in apply_changes(base, changes):
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
