"""The laptop's memory of what it has hashed and of the manifests that boxes hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.effects.agent import Agent, read_frames
from deploy.effects.parts import sha256_of
from deploy.effects.scan import read_scan, scan_line
from deploy.effects.settings import laptop_folder
from deploy.errors import TransferError
from deploy.plan.transfer import FILE, FOLDER, LINK, Entry, Found, read_manifest, side_by_side

MOST_MOVED = 200_000  # contents that lost their path and are looked for under another
MANIFESTS_KEPT = 12


class Memory:
    """What is remembered of one folder: `known` is its last scan with checksums."""

    def __init__(self, root: str, exclude: Iterable[str]) -> None:
        named = json.dumps([root, *exclude]).encode()
        self.folder = laptop_folder() / "uploads" / hashlib.sha256(named).hexdigest()[:24]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.known = self.folder / "known.tsv"
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

    def remember(self, found: Iterable[Found]) -> None:
        replace(self.known, (scan_line(each) for each in found))

    def learn(self, hashed: Path) -> None:
        """Take over the checksums of files that were hashed on the way: a scan's lines, in order."""
        with self.known.open(encoding="ascii") as known, hashed.open(encoding="ascii") as fresh:
            replace(self.known, newest(known, fresh))

    def recall(self, found: Iterable[Found]) -> Iterator[Found]:
        """With the checksums of files whose size, mtime and inode are what they were."""
        known = read_scan(self.known) if self.known.exists() else iter(())
        for old, new in side_by_side(known, found):
            if new is not None:
                same = old is not None and old[:6] == new[:6]
                yield new._replace(sha256=old.sha256) if same else new


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
    """A scan's lines, those of `fresh` in the place of the known ones of the same path."""
    line = next(fresh, "")
    path = line.split("\t", 6)[6:]
    for each in known:
        if path == each.split("\t", 6)[6:]:
            yield line
            line = next(fresh, "")
            path = line.split("\t", 6)[6:]
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
    for old, new in side_by_side(base, found):
        pathless.see(old, new)
        if new is None:
            continue
        alike = old is not None and (old.type, old.size) == (new.type, new.size)
        if alike and not new.sha256 and new.type not in (FOLDER, LINK):
            new = new._replace(sha256=sha256_of(root, new))
        yield new


def hash_what_may_have_moved(root: str, found: Iterable[Found], sizes: set[int]) -> Iterator[Found]:
    """Hash new files that are as large as one that lost its path: they may be that one."""
    for each in found:
        if each.type == FILE and not each.sha256 and each.size in sizes:
            each = each._replace(sha256=sha256_of(root, each))
        yield each


class Base:
    """The manifest that the box holds now, on this laptop's disk; empty where it holds none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.damaged: set[str] = set()  # checksums of packs and files that are to be sent again

    def is_empty(self) -> bool:
        return self._path is None

    def sound_entries(self) -> Iterator[Entry]:
        """Without those whose content is damaged there."""
        wrong = self.damaged
        return (
            each
            for each in self.entries()
            if not wrong or not (each.pack in wrong or each.sha256 in wrong)
        )

    def entries(self) -> Iterator[Entry]:
        if self._path is None:
            return
        with self._path.open(encoding="ascii") as file:
            yield from read_manifest(file)[1]


def manifests_folder() -> Path:
    folder = laptop_folder() / "manifests"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def fetch_base(agent: Agent, name: str, state: dict[str, Any]) -> Base:
    """The box's current manifest: from the last time, else over the line, checked by its checksum."""
    if not state["id"]:
        return Base(None)
    path = manifests_folder() / f"{state['manifest']}.jsonl"
    if not path.exists():
        stream = agent.open("manifest", name=name, version=state["id"])
        fresh, digest, unsqueeze = path.with_suffix(f".{os.getpid()}"), hashlib.sha256(), None
        try:
            stream.stdin.close()
            unsqueeze = zlib.decompressobj()
            with fresh.open("wb") as file:
                for frame in read_frames(stream.stdout):
                    data = unsqueeze.decompress(frame)
                    digest.update(data)
                    file.write(data)
            if digest.hexdigest() != state["manifest"]:
                raise TransferError(f"{name}: the manifest did not arrive whole", "try again")
            fresh.replace(path)
        finally:
            stream.close()
            fresh.unlink(missing_ok=True)
    path.touch()
    return Base(path)


def keep_manifest(written: Path, sha256: str) -> None:
    """Put a manifest that the box holds now where `fetch_base` looks; drop the oldest ones."""
    folder = manifests_folder()
    written.replace(folder / f"{sha256}.jsonl")
    by_age = sorted(folder.glob("*.jsonl"), key=lambda each: each.stat().st_mtime)
    for old in by_age[:-MANIFESTS_KEPT]:
        old.unlink(missing_ok=True)
