"""Stages one version of a data set from /data to /input: whole and verified under another name first."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import Any, Callable, Iterator

from .activity import active
from .archives import unpack_archive
from .commit import roll_forward
from .damage import note_damage
from .locks import locked
from .manifest import ARCHIVE, FOLDER, LINK, Entry
from .places import Places, find_places
from .plain import SMALL, Plain, copy_plain
from .progress import Progress
from .receive import out_of_room
from .room import block_size, make_room
from .settled import is_settled, note_boot, publish, set_aside
from .shelf import Shelf, current, find_shelf, find_version, open_manifest
from .spill import PLAIN, Spill
from .staged import Journal, Staged, alone, damage, find_staged, is_whole, point_to
from .unpack import Damaged, Pack, write_packs

Tell = Callable[..., None]


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
    if not os.path.isdir(shelf.own) and os.path.isdir(shelf.root):
        from .foreign import stage_foreign

        return stage_foreign(places, shelf, tell)
    finish_upload(shelf)
    staged = find_staged(places, name, find_version(shelf, version))
    already = os.path.isdir(staged.path) and still_whole(shelf, staged, again, tell)
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


def still_whole(shelf: Shelf, staged: Staged, again: bool, tell: Tell) -> bool:
    """Believed, or read again and found right; a damaged copy is set aside."""
    settled = is_settled(staged)
    if settled and not again:
        return True
    if not settled:
        tell(note="the box has booted since this was staged: verifying it")
    wrong = damage(shelf, staged)
    if not wrong:
        if not settled:
            note_boot(staged)
        return True
    tell(note=f"{len(wrong)} staged files are damaged, such as {wrong[0]!r}: staging anew")
    set_aside(staged)
    return False


def finish_upload(shelf: Shelf) -> None:
    if os.path.exists(shelf.at("incoming", "commit.json")) and os.access(shelf.own, os.W_OK):
        with locked(shelf.at("lock"), "finish an upload", wait=60):
            roll_forward(shelf)


class Staging:
    """One copy in the making: sorts the manifest by where contents lie, then writes."""

    def __init__(self, places: Places, shelf: Shelf, staged: Staged, tell: Tell) -> None:
        self.places, self.shelf, self.staged, self.tell = places, shelf, staged, tell
        self.journal = Journal(staged)
        self.told = Progress(0, tell)

    def run(self) -> None:
        os.makedirs(self.staged.part, mode=0o700, exist_ok=True)
        work = self._sort()
        self.told.total = work.bytes
        have = bytes_in(self.staged.part) if self.journal.resuming else 0
        make_room(self.places, self.staged, work.blocks - have, work.inodes, self.tell)
        try:
            self._write(work)
            work.files.remove()
            publish(self.staged)
        except OSError as no:
            raise out_of_room(no, self.places.input) from no
        except Damaged:
            self.tell(note="damage on the data disk: looking for more of it")
            note_damage(self.shelf, self.staged.version, self.tell)
            raise
        self.journal.remove()

    def _sort(self) -> Work:
        spill = Spill(self.staged.path + ".index")
        spill.remove()  # of an attempt that was killed
        work = Work(block_size(self.places.input), spill)
        with open_manifest(self.shelf, self.staged.version) as (header, entries):
            work.zip_names = header.zip_names
            for entry in entries:
                work.add(entry)
        return work

    def _write(self, work: Work) -> None:
        root = self.staged.part
        for folder in work.folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(root, folder.path), folder.mode | 0o700)
        write_packs(self._packs(work), root, self._pack_done)
        link = self._on_one_disk()
        is_current = current(self.shelf).get("id") == self.staged.version
        for entries in work.files.slices(PLAIN):
            wanted = [each for each in entries if not self._is_here(each)]
            self.journal.clear(root, wanted)
            plain = [self._plain(each, is_current) for each in wanted]
            copy_plain(plain, root, self._plain_done, link)
        for each in work.links:
            with contextlib.suppress(FileExistsError):
                os.symlink(each.target, os.path.join(root, each.path))
        for each in work.archives:
            self._unpack(self._plain(each, is_current), work.zip_names)

    def _packs(self, work: Work) -> Iterator[Pack]:
        """What is wanted of each pack, one at a time: read ahead, but never all in memory."""
        for sha256 in work.files.names():
            if sha256 != PLAIN and not self.journal.has(sha256):
                entries = [each for part in work.files.slices(sha256) for each in part]
                self.journal.clear(self.staged.part, entries)
                yield Pack(self.shelf.pack(sha256), sorted(entries, key=lambda each: each.offset))

    def _unpack(self, archive: Plain, zip_names: str) -> None:
        """An archive's members are not resumed: an attempt that ended early is removed first."""
        part, entry = self.staged.part, archive.entry
        source = next((each for each in archive.sources if os.path.exists(each)), "")
        if not source:
            raise Damaged(entry, archive.sources[0])
        shutil.rmtree(part)
        os.mkdir(part, 0o700)
        try:
            with self._seekable(source, archive) as path:
                unpack_archive(path, entry, part, zip_names, self.staged.members)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    @contextlib.contextmanager
    def _seekable(self, source: str, archive: Plain) -> Iterator[str]:
        """A zip is read from its end and all over: from a verified copy on the fast disk."""
        if not source.lower().endswith(".zip"):
            yield source
            return
        folder = self.staged.path + ".zip"
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder, 0o700)
        try:
            copy_plain([archive], folder, lambda _: None, self._on_one_disk())
            yield os.path.join(folder, archive.entry.path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _on_one_disk(self) -> bool:
        same = os.stat(self.shelf.root).st_dev == os.stat(self.staged.part).st_dev
        if same:
            self.tell(note="/data and /input are one file system here: there is no faster disk")
        return same

    def _plain(self, entry: Entry, is_current: bool) -> Plain:
        here = os.path.join(self.shelf.root, entry.path)
        old = self.shelf.at("old", entry.sha256)
        return Plain(entry, (here, old) if is_current else (old, here))

    def _is_here(self, entry: Entry) -> bool:
        """Whole already, by an earlier attempt that was interrupted."""
        if not self.journal.resuming:
            return False
        path = os.path.join(self.staged.part, entry.path)
        return self.journal.has(entry.path) or (entry.size <= SMALL and is_whole(path, entry))

    def _pack_done(self, pack: Pack) -> None:
        self.journal.add(os.path.basename(pack.path).partition(".")[0])
        for each in pack.entries:
            self.told.add(each)

    def _plain_done(self, each: Plain) -> None:
        if each.entry.size > SMALL:
            self.journal.add(each.entry.path)
        self.told.add(each.entry)


def bytes_in(folder: str) -> int:
    """Bytes of disk that a folder takes."""
    return sum(
        os.lstat(os.path.join(where, name)).st_blocks * 512
        for where, _, names in os.walk(folder)
        for name in names
    )


class Work:
    """A manifest's entries by what has to be done with them, and the room that they take."""

    def __init__(self, block: int, files: Spill) -> None:
        self.files = files
        self.folders: list[Entry] = []
        self.links: list[Entry] = []
        self.archives: list[Entry] = []
        self.bytes = self.blocks = self.inodes = 0
        self.zip_names = ""
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
        else:
            self.files.add(entry.pack or PLAIN, entry)
