"""Unpacks a user's archive below one folder: nothing lands outside it, bombs and damage are refused."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import IO

from .judging import DAMAGE, Judge, damaged, inner
from .manifest import FILE, FOLDER, LINK, Entry, line_of
from .member import Member
from .refusal import Refusal
from .tars import tar_members
from .within import Tree
from .zips import zip_members


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
            unpacking.judge.end()
    except DAMAGE as no:
        raise damaged(entry.path, no) from no


def room_left(root: str) -> int:
    room = os.statvfs(root)
    return room.f_bavail * room.f_frsize


class Unpacking:
    """Writes the members that the judge lets pass, one after another."""

    def __init__(self, archive: Entry, tree: Tree, room: int, lines: IO[str]) -> None:
        self.judge = Judge(archive.path, archive.size)
        self.tree, self.room, self.lines = tree, room, lines

    def take(self, member: Member) -> None:
        path = self.judge.path_of(member)
        if not path:
            return
        try:
            self._write(member, path)
        except (NotADirectoryError, FileNotFoundError, IsADirectoryError) as no:
            raise self.judge.refused(member, "lies below a link or a file") from no

    def _write(self, member: Member, path: str) -> None:
        if member.type == FOLDER:
            self.tree.folder(path, member.mode & 0o777 | 0o700)
        elif member.type == FILE:
            self._write_file(member, path)
        elif member.type == LINK:
            self.tree.symlink(member.target, path)
        else:
            self.tree.hard_link(inner(member.target), path)

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
        self.judge.files += 1
        done = Entry(path, FILE, mode, size, moment * 10**9, digest.hexdigest())
        self.lines.write(line_of(done))

    def _count(self, more: int, member: Member) -> None:
        self.judge.count(more, member)
        if self.judge.bytes > self.room:
            raise Refusal(
                "NoSpace",
                f"{self.judge.archive} unpacked is larger than the {self.room >> 20} MiB that are free",
                "free some, or set boxes.NAME.input",
            )
