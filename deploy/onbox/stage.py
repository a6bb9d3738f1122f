"""Stages one version of a data set from /data to /input: whole and verified under another name first."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Iterator

from .activity import active
from .commit import roll_forward
from .locks import describe, locked
from .manifest import ARCHIVE, FOLDER, LINK, Entry
from .places import Places, find_places
from .plain import Plain, copy_plain
from .publish import publish_folder
from .receive import out_of_room
from .room import make_room
from .shelf import Shelf, current, find_shelf, find_version, open_manifest
from .staged import Journal, Staged, find_staged, point_to, verify
from .unpack import Pack, write_packs

Tell = Callable[..., None]
WAIT = 24 * 3600.0  # s for somebody else's staging of the same set


def stage(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """`name`, `version` ("current"), `verify`; events {staged, total, file} and {note}."""
    places = find_places(request)
    again = bool(request.get("verify"))
    version = request.get("version") or "current"
    return stage_set(places, request["name"], version, wire.event, again)


def stage_version(
    places: Places, name: str, version: str = "current", on_progress: Tell | None = None
) -> str:
    """The folder on the fast disk that holds this version, whole; staged now where it was not."""
    return str(stage_set(places, name, version, on_progress or silent)["path"])


def silent(**fields: Any) -> None:
    pass


def stage_set(
    places: Places, name: str, version: str, tell: Tell, again: bool = False
) -> dict[str, Any]:
    """Path, version, files, bytes, seconds, and `already` where it was there before."""
    began = time.monotonic()
    shelf = find_shelf(places, name)
    finish_upload(shelf)
    staged = find_staged(places, name, find_version(shelf, version))
    already = os.path.isdir(staged.path) and not (again and not verify(shelf, staged, tell))
    if not already:
        with active("stage " + name), alone(places, name, tell):
            already = os.path.isdir(staged.path)
            if not already:
                Staging(places, shelf, staged, tell).run()
    point_to(staged)
    with open_manifest(shelf, staged.version) as (header, _):
        pass
    return {
        "path": staged.path,
        "link": staged.link,
        "version": staged.version,
        "files": header.files,
        "bytes": header.bytes,
        "already": already,
        "seconds": round(time.monotonic() - began, 3),
    }


def finish_upload(shelf: Shelf) -> None:
    if os.path.exists(shelf.at("incoming", "commit.json")) and os.access(shelf.own, os.W_OK):
        with locked(shelf.at("lock"), "finish an upload", wait=60):
            roll_forward(shelf)


@contextlib.contextmanager
def alone(places: Places, name: str, tell: Tell) -> Iterator[None]:
    """One staging of a set at a time; a second one waits and says for whom."""
    folder = os.path.join(places.input, ".gpubox")
    os.makedirs(folder, mode=0o700, exist_ok=True)

    def say(owner: dict[str, Any]) -> None:
        tell(note="waiting for " + describe(owner))

    with locked(os.path.join(folder, name + ".lock"), "stage " + name, wait=WAIT, on_wait=say):
        yield


class Staging:
    """One copy in the making: sorts the manifest by where contents lie, then writes."""

    def __init__(self, places: Places, shelf: Shelf, staged: Staged, tell: Tell) -> None:
        self.places, self.shelf, self.staged, self.tell = places, shelf, staged, tell
        self.journal = Journal(staged)
        self.done_bytes = self.total = 0
        self._told = 0.0

    def run(self) -> None:
        os.makedirs(self.staged.part, mode=0o700, exist_ok=True)
        work = self._sort()
        self.total = work.bytes
        have = bytes_in(self.staged.part) if self.journal.resuming else 0
        make_room(self.places, self.staged, work.blocks - have, work.inodes, self.tell)
        try:
            self._write(work)
            publish_folder(self.staged.part, self.staged.path)
        except OSError as no:
            raise out_of_room(no, self.places.input) from no
        self.journal.remove()

    def _sort(self) -> Work:
        work = Work(os.statvfs(self.places.input).f_frsize)
        with open_manifest(self.shelf, self.staged.version) as (_, entries):
            for entry in entries:
                work.add(entry)
        return work

    def _write(self, work: Work) -> None:
        root = self.staged.part
        for folder in work.folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(root, folder.path), folder.mode | 0o700)
        packs = [
            Pack(self.shelf.pack(sha), sorted(each, key=lambda entry: entry.offset))
            for sha, each in work.packs.items()
            if not self.journal.has(sha)
        ]
        for pack in packs:
            self.journal.clear(root, pack.entries)
        write_packs(packs, root, self._pack_done)
        link = self._on_one_disk()
        is_current = current(self.shelf).get("id") == self.staged.version
        plain = [self._plain(each, is_current) for each in work.plain]
        plain = [each for each in plain if not self.journal.has(each.entry.path)]
        self.journal.clear(root, [each.entry for each in plain])
        copy_plain(plain, root, self._plain_done, link)
        for each in work.links:
            with contextlib.suppress(FileExistsError):
                os.symlink(each.target, os.path.join(root, each.path))

    def _on_one_disk(self) -> bool:
        same = os.stat(self.shelf.root).st_dev == os.stat(self.staged.part).st_dev
        if same:
            self.tell(note="/data and /input are one file system here: there is no faster disk")
        return same

    def _plain(self, entry: Entry, is_current: bool) -> Plain:
        here = os.path.join(self.shelf.root, entry.path)
        old = self.shelf.at("old", entry.sha256)
        return Plain(entry, (here, old) if is_current else (old, here))

    def _pack_done(self, pack: Pack) -> None:
        self.journal.add(os.path.basename(pack.path).partition(".")[0])
        self._progress(sum(each.size for each in pack.entries), pack.entries[-1].path)

    def _plain_done(self, each: Plain) -> None:
        if each.entry.size > 1 << 20:
            self.journal.add(each.entry.path)
        self._progress(each.entry.size, each.entry.path)

    def _progress(self, count: int, path: str) -> None:
        self.done_bytes += count
        now = time.monotonic()
        if now - self._told > 0.25:
            self._told = now
            self.tell(staged=self.done_bytes, total=self.total, file=path)


def bytes_in(folder: str) -> int:
    """Bytes of disk that a folder takes."""
    return sum(
        os.lstat(os.path.join(where, name)).st_blocks * 512
        for where, _, names in os.walk(folder)
        for name in names
    )


class Work:
    """A manifest's entries by what has to be done with them, and the room that they take."""

    def __init__(self, block: int) -> None:
        self.packs: dict[str, list[Entry]] = {}
        self.plain: list[Entry] = []
        self.folders: list[Entry] = []
        self.links: list[Entry] = []
        self.archives: list[Entry] = []
        self.bytes = self.blocks = self.inodes = 0
        self._block = block  # bytes that a file takes at least on the target

    def add(self, entry: Entry) -> None:
        self.inodes += 1
        self.bytes += entry.size
        self.blocks += -(-entry.size // self._block) * self._block
        if entry.type == FOLDER:
            self.folders.append(entry)
            self.blocks += self._block
        elif entry.type == LINK:
            self.links.append(entry)
        elif entry.type == ARCHIVE:
            self.archives.append(entry)
        elif entry.pack:
            self.packs.setdefault(entry.pack, []).append(entry)
        else:
            self.plain.append(entry)
