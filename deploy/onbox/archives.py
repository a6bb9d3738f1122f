"""Unpacks a user's archive below one folder: nothing lands outside it, bombs and damage are refused."""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import tarfile
import zipfile
import zlib
from typing import IO

from .manifest import FILE, FOLDER, LINK, Entry, is_safe, line_of, link_stays_inside
from .member import HARD_LINK, Member
from .refusal import Refusal
from .tars import tar_members
from .within import Tree
from .zips import zip_members

RATIO = 100  # unpacked bytes per byte of archive, beyond ALLOWED
ALLOWED = 64 << 20
MOST_MEMBERS = 20_000_000
SKIPPED = ("__MACOSX", ".DS_Store", "Thumbs.db")
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,  # zipfile: a password is needed
)


def unpack_archive(path: str, entry: Entry, root: str, zip_names: str, members_file: str) -> None:
    """Unpack into `root`; `members_file` gets a manifest line for each file, for verification later.

    Refusal (DataError) for members that would leave `root`, for bombs and for damage; then `root`
    may hold some of the members, and the caller removes it.
    """
    try:
        with open(members_file, "w", encoding="ascii") as lines, Tree(root) as tree:
            unpacking = Unpacking(entry, tree, room_left(root), lines)
            is_zip = path.lower().endswith(".zip")
            members = zip_members(path, zip_names) if is_zip else tar_members(path, entry)
            with contextlib.closing(members):
                for member in members:
                    unpacking.take(member)
            unpacking.end()
    except DAMAGE as no:
        what = str(no) or type(no).__name__
        raise Refusal(
            "DataError",
            f"{entry.path} is damaged or not what its name says: {what}",
            "make it again, and try to unpack it on the laptop",
        ) from no


def room_left(root: str) -> int:
    room = os.statvfs(root)
    return room.f_bavail * room.f_frsize


class Unpacking:
    """Writes members one after another and keeps count."""

    def __init__(self, archive: Entry, tree: Tree, room: int, lines: IO[str]) -> None:
        self.archive, self.tree, self.lines = archive, tree, lines
        self.limit = RATIO * archive.size + ALLOWED
        self.room = room
        self.bytes = self.members = self.files = 0

    def take(self, member: Member) -> None:
        parts = [part for part in member.path.split("/") if part not in ("", ".")]
        if any(part in SKIPPED or part.startswith("._") for part in parts):
            return
        self.members += 1
        if self.members > MOST_MEMBERS:
            raise self._refused(member, f"is one of more than {MOST_MEMBERS}")
        path = "/".join(parts)
        if not path and member.type == FOLDER:
            return
        if member.path.startswith("/") or ".." in parts or not is_safe(path):
            raise self._refused(member, "would land outside the data set")
        try:
            self._write(member, path)
        except (NotADirectoryError, FileNotFoundError, IsADirectoryError) as no:
            raise self._refused(member, "lies below a link or a file") from no

    def _write(self, member: Member, path: str) -> None:
        if member.type == FOLDER:
            self.tree.folder(path, member.mode & 0o777 | 0o700)
        elif member.type == FILE:
            self._write_file(member, path)
        elif member.type == LINK:
            if not link_stays_inside(path, member.target):
                raise self._refused(member, f"is a link out of the data set, to {member.target!r}")
            self.tree.symlink(member.target, path)
        elif member.type == HARD_LINK and is_safe(member.target):
            self.tree.hard_link(member.target, path)
        elif member.type == HARD_LINK:
            raise self._refused(member, f"is a link out of the data set, to {member.target!r}")
        else:
            raise self._refused(member, "is a device, a fifo or the like")

    def _write_file(self, member: Member, path: str) -> None:
        digest, size = hashlib.sha256(), 0
        mode = member.mode & 0o777 | 0o400  # setuid and its kind are not taken over
        fd = self.tree.create(path, mode)
        with os.fdopen(fd, "wb") as out, member.open() as content:
            for block in iter(lambda: content.read(1 << 20), b""):
                size += len(block)
                self._count(len(block), member)
                digest.update(block)
                out.write(block)
            out.flush()
            moment = max(0, member.mtime)
            os.utime(fd, (moment, moment))
        self.files += 1
        done = Entry(path, FILE, mode, size, moment * 10**9, digest.hexdigest())
        self.lines.write(line_of(done))

    def _count(self, more: int, member: Member) -> None:
        self.bytes += more
        if self.bytes > self.limit:
            raise self._refused(member, f"brings it to over {RATIO} times the archive's own size")
        if self.bytes > self.room:
            raise Refusal(
                "NoSpace",
                f"{self.archive.path} unpacked is larger than the {self.room >> 20} MiB that are free",
                "free some, or set boxes.NAME.input",
            )

    def _refused(self, member: Member, why: str) -> Refusal:
        return Refusal(
            "DataError",
            f"{self.archive.path}: {member.path!r} {why}; nothing of it was kept",
            "unpack it where you trust it, and upload the folder",
        )

    def end(self) -> None:
        if not self.files:
            raise Refusal("DataError", f"{self.archive.path} holds no files", "")
