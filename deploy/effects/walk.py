"""Walks below a folder in the order of a manifest: all of it, or a share of it as a helper's program.

A helper waits for every import of this module before its first folder.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, BinaryIO

from deploy.onbox.manifest import FILE, FOLDER, LINK, link_stays_inside

ALWAYS_SKIPPED = (".DS_Store", "._*", "__MACOSX", ".git", "Thumbs.db")
BATCH = 1000  # names
SMALL = 1 << 20  # bytes: files below it are counted
BY_FOLDER = os.scandir in os.supports_fd and os.stat in os.supports_dir_fd  # not on Windows
ODD = re.compile(r"[^ !#-\[\]-~]")  # in a name that JSON does not write as it is

Level = list[tuple[list[str], str]]  # lines up to a folder's, and that folder; "" at the end


class Survey:
    """What a walk saw beside the entries themselves: numbers and lists, which add up."""

    def __init__(self, **known: Any) -> None:
        self.files = self.folders = self.links = self.skipped = 0
        self.bytes = 0
        self.small = self.small_bytes = 0  # files below SMALL
        self.sparse = 0  # files that take much less room here than they will on the box
        self.special: list[str] = []  # sockets, fifos, devices: left out
        self.unreadable: list[str] = []
        self.leaving: list[str] = []  # links that lead out of the set
        self.alike: list[tuple[str, str]] = []  # names that some systems take for one
        self.linked: list[tuple[int, int, int]] = []  # device, inode, bytes of hard links
        self.fingerprint = ""
        vars(self).update(known)

    def add(self, other: dict[str, Any]) -> None:
        """The `vars` of another part of the same walk, which comes after this one."""
        for name, value in other.items():
            setattr(self, name, getattr(self, name) + value)


class Walk:
    """Lists what lies below a root as lines of a scan. Memory: one folder a level."""

    def __init__(self, root: str, exclude: Iterable[str]) -> None:
        self.root, self.exclude, self.survey = root, tuple(exclude), Survey()
        excluded = [each.rstrip("/") for each in self.exclude]
        self._skip = _any_of([*ALWAYS_SKIPPED, *excluded])
        self._skip_path = _any_of(excluded) if excluded else None
        self._user = os.geteuid() if hasattr(os, "geteuid") else 0  # root reads everything

    def take_survey(self) -> Survey:
        """What was seen since the last time."""
        taken, self.survey = self.survey, Survey()
        return taken

    def names(self, prefix: str) -> list[str]:
        """What is in a folder, in the order of a manifest: a folder's name ends with a slash."""
        with contextlib.suppress(PermissionError), self._opened(prefix) as fd:
            return self._names(prefix, fd)
        self.survey.unreadable.append(prefix)
        return []

    def lines(self, prefix: str, names: list[str], deep: bool = True) -> Iterator[list[str]]:
        """Lines of these names; `deep`: after each folder's line, those of all that is in it."""
        with self._opened(prefix) as fd:
            levels = [iter(self._level(prefix, names, fd))]
        while levels:
            lines, below = next(levels[-1], (None, ""))
            if lines is None:
                levels.pop()
                continue
            yield lines
            if below and deep:
                levels.append(iter(self._folder(below)))

    def _folder(self, prefix: str) -> Level:
        with contextlib.suppress(PermissionError), self._opened(prefix) as fd:
            return self._level(prefix, self._names(prefix, fd), fd)
        self.survey.unreadable.append(prefix)
        return []

    @contextlib.contextmanager
    def _opened(self, prefix: str) -> Iterator[int]:
        """A folder that is open while the block lasts: a look at what is in it is then twice as fast."""
        if not BY_FOLDER:
            yield -1
            return
        fd = os.open(os.path.join(self.root, prefix), os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    def _names(self, prefix: str, fd: int) -> list[str]:
        skip, skip_path = self._skip, self._skip_path if prefix else None
        names: list[str] = []
        with os.scandir(fd if fd >= 0 else os.path.join(self.root, prefix)) as entries:
            for each in entries:
                name = each.name
                if skip(name) or (skip_path and skip_path(prefix + name)):
                    self.survey.skipped += 1
                else:
                    names.append(name + "/" if each.is_dir(follow_symlinks=False) else name)
        names.sort()
        self._note_alike(prefix, names)
        return names

    def _level(self, prefix: str, names: list[str], fd: int) -> Level:
        """Lines of these names of a folder, cut behind the line of each folder in it."""
        look, head = self._looker(prefix, fd), '"' + quoted(prefix)[1:-1]
        level: Level = [([], "")]
        for batch in (names[at : at + BATCH] for at in range(0, len(names), BATCH)):
            statuses = [look(name.rstrip("/")) for name in batch]
            plain = ODD.search("".join(batch)) is None
            written = batch if plain else [quoted(name)[1:-1] for name in batch]
            for name, status, text in zip(batch, statuses, written, strict=True):
                kind, lines = stat.S_IFMT(status.st_mode), level[-1][0]
                if kind == stat.S_IFREG:
                    lines.append(line_of_file(status, head + text))
                elif name.endswith("/"):
                    mode = status.st_mode & 0o777
                    lines.append(f'{FOLDER}\t{mode}\t0\t0\t0\t{head}{text[:-1]}"\n')
                    level[-1:] = [(lines, prefix + name), ([], "")]
                elif kind == stat.S_IFLNK:
                    lines.append(self._link(prefix + name, status))
                else:
                    self.survey.special.append(prefix + name)
            self._note_files(prefix, batch, statuses)
        self.survey.folders += len(level) - 1
        return level

    def _looker(self, prefix: str, fd: int) -> Callable[[str], os.stat_result]:
        lstat, where = os.lstat, os.path.join(self.root, prefix)
        if fd >= 0:
            return lambda name: lstat(name, dir_fd=fd)
        return lambda name: lstat(os.path.join(where, name))

    def _note_files(self, prefix: str, names: list[str], statuses: list[os.stat_result]) -> None:
        files = [each for each in statuses if stat.S_ISREG(each.st_mode)]
        sizes, survey = [each.st_size for each in files], self.survey
        survey.files += len(files)
        survey.bytes += sum(sizes)
        small = [size for size in sizes if size < SMALL]
        survey.small += len(small)
        survey.small_bytes += sum(small)
        survey.linked += [(s.st_dev, s.st_ino, s.st_size) for s in files if s.st_nlink > 1]
        survey.sparse += sum([has_holes(s) for s in files if s.st_size > SMALL])
        if not self._user:
            return
        for name, status in zip(names, statuses, strict=True):
            mine = status.st_uid == self._user and status.st_mode & stat.S_IRUSR
            if mine or not stat.S_ISREG(status.st_mode):
                continue
            if not os.access(os.path.join(self.root, prefix, name), os.R_OK):
                survey.unreadable.append(prefix + name)

    def _link(self, path: str, status: os.stat_result) -> str:
        target = os.readlink(os.path.join(self.root, path))
        self.survey.links += 1
        if not link_stays_inside(path, target):
            self.survey.leaving.append(f"{path} → {target}")
        size, tail = len(os.fsencode(target)), f"{quoted(path)}\t{quoted(target)}\n"
        return f"{LINK}\t511\t{size}\t{status.st_mtime_ns}\t{status.st_ino}\t{tail}"

    def _note_alike(self, prefix: str, names: list[str]) -> None:
        """Names in one folder that are equal after case folding or Unicode normalisation."""
        if "".join(names).isascii() and len(set(map(str.lower, names))) == len(names):
            return  # the usual case, with no look at each
        seen: dict[str, str] = {}
        for name in (each.rstrip("/") for each in names):
            other = seen.setdefault(folded(name), name)
            if other is not name:
                self.survey.alike.append((prefix + other, prefix + name))


def line_of_file(status: os.stat_result, text: str) -> str:
    """`text` is the path as JSON writes it, without its last quote."""
    return (
        f"{FILE}\t{status.st_mode & 0o777}\t{status.st_size}\t{status.st_mtime_ns}\t"
        f'{status.st_ino}\t{text}"\n'
    )


def has_holes(status: os.stat_result) -> bool:
    """Takes much less room here than it will on the box."""
    blocks = getattr(status, "st_blocks", None)
    return blocks is not None and blocks * 512 < status.st_size // 2


def _any_of(patterns: Iterable[str]) -> Callable[[str], object]:
    return re.compile("|".join(fnmatch.translate(each) for each in patterns)).match


def folded(name: str) -> str:
    """Equal for names that some file systems take for one."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


class Part:
    """A file that takes the lines of some units, in the order in which they are done."""

    def __init__(self, walk: Walk, file: BinaryIO) -> None:
        self.walk, self._file = walk, file

    def take(self, prefix: str, names: list[str], deep: bool) -> tuple[int, int, dict[str, Any]]:
        """Where the unit's lines stand in the file, how many bytes they are, and what was seen."""
        begin = self._file.tell()
        for lines in self.walk.lines(prefix, names, deep):
            self._file.write("".join(lines).encode("ascii"))
        self._file.flush()
        return begin, self._file.tell() - begin, vars(self.walk.take_survey())


def help_walking() -> None:
    """A helper: root, exclusions and a file on the first line, then a unit a line, each answered by one."""
    root, exclude, path = json.loads(sys.stdin.readline())
    with open(path, "wb") as file:
        part = Part(Walk(root, exclude), file)
        for line in sys.stdin:
            sys.stdout.write(json.dumps(part.take(*json.loads(line))) + "\n")
            sys.stdout.flush()
