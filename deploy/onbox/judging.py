"""Holds an archive's members to the rules: on the laptop before it goes up, on the box as it is unpacked."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib

from .manifest import FILE, FOLDER, LINK, is_safe, link_stays_inside
from .member import HARD_LINK, Member
from .refusal import Refusal

RATIO = 100  # unpacked bytes per byte of archive, beyond ALLOWED
ALLOWED = 64 << 20
MOST_MEMBERS = 20_000_000
MOST_REMEMBERED = 2_000_000  # paths; of more members the disk itself has to tell
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


def damaged(name: str, fault: BaseException) -> Refusal:
    """What to say of one of DAMAGE."""
    what = str(fault) or type(fault).__name__
    return Refusal(
        "DataError",
        f"{name} is damaged or not what its name says: {what}",
        "make it again, and try to unpack it on the laptop",
    )


def inner(path: str) -> str:
    """Without the parts that mean nothing, as in "./a//b"."""
    return "/".join([part for part in path.split("/") if part not in ("", ".")])


class Judge:
    """Takes members one after another and keeps count; Refusal for the first that breaks a rule."""

    def __init__(self, archive: str, size: int) -> None:
        self.archive = archive
        self.limit = RATIO * size + ALLOWED
        self.bytes = self.members = self.files = 0
        self._solid: set[int] = set()  # hashes of paths of files and links: nothing lies below one
        self._open_folder = ""  # the last one that was found to be no such path

    def path_of(self, member: Member) -> str:
        """Where it belongs below the data set; empty where it is left out."""
        path = inner(member.path)
        parts = path.split("/")
        if any(part in SKIPPED or part.startswith("._") for part in parts):
            return ""
        self.members += 1
        if self.members > MOST_MEMBERS:
            raise self.refused(member, f"is one of more than {MOST_MEMBERS}")
        if not path and member.type == FOLDER:
            return ""
        if member.path.startswith("/") or ".." in parts or not is_safe(path):
            raise self.refused(member, "would land outside the data set")
        self._must_have_room(member, path)
        self._must_be_allowed(member, path)
        return path

    def _must_have_room(self, member: Member, path: str) -> None:
        """No file and no link where a folder has to be."""
        folder = path if member.type == FOLDER else path.rpartition("/")[0]
        if folder != self._open_folder:
            at = 0
            while at >= 0:
                at = folder.find("/", at + 1)
                if hash(folder if at < 0 else folder[:at]) in self._solid:
                    raise self.refused(member, "lies below a link or a file")
            self._open_folder = folder
        if member.type == LINK:
            self._open_folder = ""  # it may stand in that place now
        if member.type != FOLDER and len(self._solid) < MOST_REMEMBERED:
            self._solid.add(hash(path))

    def _must_be_allowed(self, member: Member, path: str) -> None:
        if member.type == LINK:
            inside = link_stays_inside(path, member.target)
        elif member.type == HARD_LINK:
            target = inner(member.target)
            inside = not member.target.startswith("/") and is_safe(target)
            all_known = len(self._solid) < MOST_REMEMBERED
            if inside and all_known and hash(target) not in self._solid:
                raise self.refused(member, f"is a link to {member.target!r}, which is not in it")
        elif member.type in (FILE, FOLDER):
            return
        else:
            raise self.refused(member, "is a device, a fifo or the like")
        if not inside:
            raise self.refused(member, f"is a link out of the data set, to {member.target!r}")

    def count(self, more: int, member: Member) -> None:
        """So many bytes more of a file's content."""
        self.bytes += more
        if self.bytes > self.limit:
            raise self.refused(member, f"brings it to over {RATIO} times the archive's own size")

    def refused(self, member: Member, why: str) -> Refusal:
        return Refusal(
            "DataError",
            f"{self.archive}: {member.path!r} {why}; nothing of it was kept",
            "unpack it where you trust it, and upload the folder",
        )

    def end(self) -> None:
        if not self.files:
            raise Refusal("DataError", f"{self.archive} holds no files", "name one with data in it")
