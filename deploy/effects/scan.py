"""Walks a folder on the laptop into a sorted scan file, and says what in it is awkward."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from json import loads
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import IO, Any

from deploy.errors import DataError
from deploy.plan.transfer import (
    ARCHIVE,
    FILE,
    FOLDER,
    LINK,
    PACK_BELOW,
    Found,
    link_stays_inside,
    must_be_what_its_name_says,
)

ALWAYS_SKIPPED = (".DS_Store", "._*", "__MACOSX", ".git", "Thumbs.db")
SHOWN = 5  # names in one message
MOST_COMPARED = 1_000_000  # names in an archive


@dataclass
class Survey:
    """What a scan saw beside the entries themselves."""

    files: int = 0
    folders: int = 0
    links: int = 0
    bytes: int = 0
    small: int = 0  # files below PACK_BELOW
    skipped: int = 0
    special: list[str] = field(default_factory=list)  # sockets, fifos, devices: left out
    unreadable: list[str] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)  # links that lead out of the set
    alike: list[tuple[str, str]] = field(default_factory=list)
    linked_bytes: int = 0  # that hard links would have saved
    sparse: int = 0  # files that take much less room here than they will on the box
    fingerprint: str = ""

    def refuse_what_cannot_go(self, root: str) -> None:
        if self.unreadable:
            raise DataError(
                f"{root}: can't be read: {some(self.unreadable)}", "chmod, or --exclude"
            )
        if self.leaving:
            raise DataError(
                f"{root}: links that lead out of the set: {some(self.leaving)}",
                "copy what they point to, or --exclude them",
            )

    def warnings(self) -> list[str]:
        said = []
        if self.alike:
            pairs = some([f"{a!r} and {b!r}" for a, b in self.alike])
            said.append(f"names that some systems take for one: {pairs}")
        if self.special:
            said.append(f"left out, not files: {some(self.special)}")
        if self.linked_bytes:
            said.append(f"hard links go up as separate files, {self.linked_bytes} bytes more")
        if self.sparse:
            said.append(f"{self.sparse} sparse files: their holes go up as zeros")
        return said


def some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def scan(root: str, exclude: Iterable[str], target: Path) -> Survey:
    """Write the scan file of `root` to `target`; its SHA-256 is the survey's fingerprint."""
    survey, digest, batch = Survey(), hashlib.sha256(), list[str]()
    with target.open("wb") as file:
        for lines in Walk(root, exclude, survey):
            batch += lines
            if len(batch) >= 1000:
                _write_down(batch, file, digest)
        _write_down(batch, file, digest)
    survey.fingerprint = digest.hexdigest()
    return survey


def _write_down(batch: list[str], file: IO[bytes], digest: Any) -> None:
    block = "".join(batch).encode("ascii")
    batch.clear()
    digest.update(block)
    file.write(block)


def scan_line(found: Found) -> str:
    path, kind, mode, size, mtime, inode, sha256, target = found
    tail = "\t" + quoted(target) if target else ""
    return f"{kind}\t{mode}\t{size}\t{mtime}\t{inode}\t{sha256}\t{quoted(path)}{tail}\n"


def read_scan(path: Path) -> Iterator[Found]:
    """The entries of a scan file, as a stream."""
    with path.open(encoding="ascii") as file:
        for line in file:
            kind, mode, size, mtime, inode, sha256, name, *target = line.rstrip("\n").split("\t")
            yield Found(
                _unquoted(name),
                kind,
                int(mode),
                int(size),
                int(mtime),
                int(inode),
                sha256,
                _unquoted(target[0]) if target else "",
            )


def _unquoted(text: str) -> str:
    return text[1:-1] if "\\" not in text else str(loads(text))


class Alike:
    """Finds names that are one after case folding or Unicode normalisation, in whole paths."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self._seen: dict[str, str] = {}
        self._folder = ""

    def see(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder and folder != self._folder:
            self.see(folder)
            self._folder = folder
        if len(self._seen) < MOST_COMPARED:
            other = self._seen.setdefault(_folded(path), path)
            if other != path and (other, path) not in self.pairs[-SHOWN:]:
                self.pairs.append((other, path))


class Walk:
    """Iterates over what lies below a root as lists of lines, in the order of a manifest.

    Memory: one folder a level.
    """

    def __init__(self, root: str, exclude: Iterable[str], survey: Survey) -> None:
        self.root, self.survey = root, survey
        excluded = [each.rstrip("/") for each in exclude]
        self._skip = _any_of([*ALWAYS_SKIPPED, *excluded])
        self._skip_path = _any_of(excluded) if excluded else None
        self._check_access = hasattr(os, "geteuid") and os.geteuid() != 0
        self._seen_inodes: set[tuple[int, int]] = set()

    def __iter__(self) -> Iterator[list[str]]:
        levels = [self._folder("")]
        while levels:
            lines, below = next(levels[-1], (None, ""))
            if lines is None:
                levels.pop()
                continue
            yield lines
            if below:
                levels.append(self._folder(below))

    def _folder(self, prefix: str) -> Iterator[tuple[list[str], str]]:
        """Lines up to a folder, and that folder; the last ones with ""."""
        lines: list[str] = []
        for kind, each in self._entries(prefix):
            path = prefix + each.name
            if kind == FILE:
                lines.append(self._file(path, each))
            elif kind == LINK:
                lines.append(self._link(path, each))
            elif kind == FOLDER:
                self.survey.folders += 1
                mode = each.stat(follow_symlinks=False).st_mode & 0o777
                yield [*lines, scan_line(Found(path, FOLDER, mode, 0, 0))], path + "/"
                lines = []
            else:
                self.survey.special.append(path)
        yield lines, ""

    def _entries(self, prefix: str) -> list[tuple[str, os.DirEntry[str]]]:
        """What is in a folder, each with what it is, in the order of a manifest."""
        try:
            with os.scandir(os.path.join(self.root, prefix)) as entries:
                named = [each for each in entries if not self._skipped(prefix, each.name)]
        except PermissionError:
            self.survey.unreadable.append(prefix)
            return []
        if not prefix and any(each.name == ".gpubox" for each in named):
            raise DataError(f"{self.root} holds .gpubox, a name that we need", "rename it")
        kinds = [(_kind_of(each), each) for each in named]
        kinds.sort(key=lambda each: each[1].name + "/" if each[0] == FOLDER else each[1].name)
        self._note_alike(prefix, [each.name for _, each in kinds])
        return kinds

    def _skipped(self, prefix: str, name: str) -> bool:
        if self._skip(name) or (prefix and self._skip_path and self._skip_path(prefix + name)):
            self.survey.skipped += 1
            return True
        return False

    def _file(self, path: str, entry: os.DirEntry[str]) -> str:
        status, survey = entry.stat(follow_symlinks=False), self.survey
        size = status.st_size
        survey.files += 1
        survey.bytes += size
        survey.small += size < PACK_BELOW
        if status.st_nlink > 1 or size > PACK_BELOW:
            self._note_room(status)
        if self._check_access and not os.access(entry.path, os.R_OK):
            survey.unreadable.append(path)
        mode, mtime, inode = status.st_mode & 0o777, status.st_mtime_ns, status.st_ino
        return f"{FILE}\t{mode}\t{size}\t{mtime}\t{inode}\t\t{quoted(path)}\n"

    def _link(self, path: str, entry: os.DirEntry[str]) -> str:
        target, status = os.readlink(entry.path), entry.stat(follow_symlinks=False)
        self.survey.links += 1
        if not link_stays_inside(path, target):
            self.survey.leaving.append(f"{path} → {target}")
        size = len(os.fsencode(target))
        return scan_line(
            Found(path, LINK, 0o777, size, status.st_mtime_ns, status.st_ino, "", target)
        )

    def _note_room(self, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            inode = (status.st_dev, status.st_ino)
            self.survey.linked_bytes += status.st_size if inode in self._seen_inodes else 0
            self._seen_inodes.add(inode)
        blocks = getattr(status, "st_blocks", None)
        if blocks is not None and blocks * 512 < status.st_size // 2:
            self.survey.sparse += 1

    def _note_alike(self, prefix: str, names: list[str]) -> None:
        """Names in one folder that are equal after case folding or Unicode normalisation."""
        if "".join(names).isascii() and len(set(map(str.lower, names))) == len(names):
            return  # the usual case, with no look at each
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(_folded(name), name)
            if other is not name:
                self.survey.alike.append((prefix + other, prefix + name))


def _any_of(patterns: Iterable[str]) -> Callable[[str], object]:
    return re.compile("|".join(fnmatch.translate(each) for each in patterns)).match


def _kind_of(entry: os.DirEntry[str]) -> str:
    """Empty for what is neither a file nor a folder nor a link."""
    if entry.is_file(follow_symlinks=False):
        return FILE
    if entry.is_dir(follow_symlinks=False):
        return FOLDER
    return LINK if entry.is_symlink() else ""


def _folded(name: str) -> str:
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def scan_archive(path: str, target: Path) -> Survey:
    """The scan of one archive: the folder it lies in is the root, the archive the only entry."""
    name = os.path.basename(path)
    status = os.stat(path)
    with open(path, "rb") as file:
        must_be_what_its_name_says(name, file.read(512))
    found = Found(name, ARCHIVE, 0o600, status.st_size, status.st_mtime_ns, status.st_ino)
    line = scan_line(found)
    target.write_text(line, encoding="ascii")
    digest = hashlib.sha256(line.encode()).hexdigest()
    return Survey(files=1, bytes=status.st_size, fingerprint=digest)
