"""The manifests that boxes hold, on this laptop's disk: fetched once, written along with an upload."""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deploy.effects.agent import Agent, read_frames
from deploy.effects.settings import laptop_folder
from deploy.errors import TransferError
from deploy.plan.transfer import (
    Change,
    Checker,
    Entry,
    Header,
    entry_of,
    header_line,
    line_of,
    read_lines,
    spliced,
)

MANIFESTS_KEPT = 12


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
        return (entry_of(line) for lines in self.lines() for line in lines)

    def lines(self) -> Iterator[list[str]]:
        """The entries as their lines, many at once."""
        if self._path is None:
            return
        with self._path.open(encoding="ascii") as file:
            yield from read_lines(file)[1]

    def named(self, keys: Iterable[str]) -> list[Entry]:
        """The entries of some keys, which are sorted."""
        pieces = spliced(self.lines(), ((key, None) for key in keys))
        return [piece[0] for piece in pieces if isinstance(piece, tuple) and piece[0]]


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


class Drafted(NamedTuple):
    """A new version as it will be: its manifest's lines are a file, without the header."""

    body: Path
    version: str
    header: Header


def draft_manifest(
    base: Iterable[list[str]], changes: Iterable[Change], folder: Path, zip_names: str
) -> Drafted:
    """The new version's lines, as the changes come."""
    body, check = folder / "body", Checker()
    with body.open("w", encoding="ascii") as file:
        for piece in spliced(base, changes):
            if isinstance(piece, list):
                check.add_lines(piece)
                file.writelines(piece)
            elif entry := piece[1]:
                check.add(entry)
                file.write(line_of(entry))
    return Drafted(body, check.version(), check.header(round(time.time(), 3), zip_names))


def finish_manifest(drafted: Drafted) -> tuple[Path, str]:
    """The whole manifest as a file, and its SHA-256."""
    whole, digest = drafted.body.with_name("manifest"), hashlib.sha256()
    with whole.open("wb") as file, drafted.body.open("rb") as rest:
        block = header_line(drafted.header).encode()
        while block:
            digest.update(block)
            file.write(block)
            block = rest.read(1 << 20)
    return whole, digest.hexdigest()
