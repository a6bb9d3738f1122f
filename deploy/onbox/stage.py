"""Stages one version of a data set from /data to /input: whole and verified under another name first."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from functools import partial
from typing import Any, Callable, Iterator

from .activity import active
from .crew import cores, share_out
from .locks import locked
from .manifest import ARCHIVE, FILE, FOLDER, LINK, Entry
from .places import Places, find_places
from .plain import SMALL, Plain, copy_plain
from .progress import Progress
from .reading import READERS
from .refusal import Refusal
from .room import block_size, lacking, make_room
from .settled import is_settled, note_boot, publish, set_aside
from .shelf import Shelf, current, find_shelf, find_version
from .slices import PACKED, Manifest, Slice, not_packed, opened, read_slices, room_taken
from .spill import Spill
from .staged import Journal, Staged, alone, damage, find_staged, is_whole, point_to
from .unpack import Damaged, drop, write_slices

FEW = 500  # files that one process writes as soon as several
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
    with opened(shelf, staged.version) as manifest:
        header = manifest.header
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
        from .commit import roll_forward

        with locked(shelf.at("lock"), "finish an upload", wait=60):
            roll_forward(shelf)


class Staging:
    """One copy in the making: packed files by several processes, all else after them."""

    def __init__(self, places: Places, shelf: Shelf, staged: Staged, tell: Tell) -> None:
        self.places, self.shelf, self.staged, self.tell = places, shelf, staged, tell
        self.journal = Journal(staged)
        self.told = Progress(0, tell)
        self.later = Spill(staged.path + ".index")  # what lies in no pack
        self.archives: list[Entry] = []

    def run(self) -> None:
        os.makedirs(self.staged.part, mode=0o700, exist_ok=True)
        try:
            with opened(self.shelf, self.staged.version) as manifest:
                self._make_room(manifest)
                self._write(manifest)
            publish(self.staged)
        except OSError as no:
            from .receive import out_of_room

            raise out_of_room(no, self.places.input) from no
        except Refusal as no:
            if no.kind == "VerifyError":
                self._note_damage()
            raise
        finally:
            self.later.remove()
        self.journal.remove()

    def _make_room(self, manifest: Manifest) -> None:
        """As if each file wasted a block at its end; counted exactly where that is too much."""
        header, block = manifest.header, block_size(self.places.input)
        inodes = header.files + header.folders + header.links
        have = bytes_in(self.staged.part) if self.journal.resuming else 0
        blocks = header.bytes + inodes * block
        if lacking(self.places.input, blocks - have, inodes):
            blocks = room_taken(manifest, block)
            make_room(self.places, self.staged, blocks - have, inodes, self.tell)

    def _write(self, manifest: Manifest) -> None:
        root, header = self.staged.part, manifest.header
        self.told.total = header.bytes
        self.later.remove()  # of an attempt that was killed
        link = self._on_one_disk()
        count = cores() if header.files > FEW else 1
        work = partial(
            write_slices,
            manifest=manifest.fd,
            shelf=self.shelf,
            root=root,
            readers=max(8, READERS // count),
            again=self.journal.resuming,
        )
        for offset, length, size, path in share_out(work, self._sort(manifest), count):
            self.journal.add(f"{offset}+{length}")
            self.told.add(size, path)
        self._write_plain(link)
        for entries in self.later.slices(LINK):
            for each in entries:
                with contextlib.suppress(FileExistsError):
                    os.symlink(each.target, os.path.join(root, each.path))
        for each in self.archives:
            self._unpack(self._plain(each, True), header.zip_names)

    def _sort(self, manifest: Manifest) -> Iterator[Slice]:
        """The slices in which something is packed; their folders are there, all else is put by."""
        for part, lines in read_slices(manifest):
            for entry in not_packed(lines):
                if entry.type == FOLDER:
                    with contextlib.suppress(FileExistsError):
                        path = os.path.join(self.staged.part, entry.path)
                        os.mkdir(path, entry.mode | 0o700)
                elif entry.type == ARCHIVE:
                    self.archives.append(entry)
                else:
                    self.later.add(entry.type, entry)
            if PACKED in lines and not self.journal.has(f"{part.offset}+{part.length}"):
                yield part

    def _write_plain(self, link: bool) -> None:
        root = self.staged.part
        is_current = current(self.shelf).get("id") == self.staged.version
        for entries in self.later.slices(FILE):
            wanted = [each for each in entries if not self._is_here(each)]
            if self.journal.resuming:
                drop(root, wanted)
            plain = [self._plain(each, is_current) for each in wanted]
            copy_plain(plain, root, self._plain_done, link)

    def _note_damage(self) -> None:
        from .damage import note_damage

        self.tell(note="damage on the data disk: looking for more of it")
        note_damage(self.shelf, self.staged.version, self.tell)

    def _unpack(self, archive: Plain, zip_names: str) -> None:
        """An archive's members are not resumed: an attempt that ended early is removed first."""
        from .archives import unpack_archive

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
            self.journal.remove()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.staged.members)
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

    def _plain_done(self, each: Plain) -> None:
        if each.entry.size > SMALL:
            self.journal.add(each.entry.path)
        self.told.add(each.entry.size, each.entry.path)


def bytes_in(folder: str) -> int:
    """Bytes of disk that a folder takes."""
    return sum(
        os.lstat(os.path.join(where, name)).st_blocks * 512
        for where, _, names in os.walk(folder)
        for name in names
    )
