"""What is staged on /input: folders by name and version, the link to the newest, a journal of each copy."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Callable, Iterator, NamedTuple

from .locks import boot_id, describe, locked
from .manifest import ARCHIVE, FILE, LINK, Entry, entry_of
from .places import Places
from .shelf import Shelf, open_manifest

WAIT = 24 * 3600.0  # s for somebody else's staging of the same set
Tell = Callable[..., None]


class Staged(NamedTuple):
    """Where one version is staged; `part` while it is in the making."""

    name: str
    version: str
    link: str  # /input/NAME
    path: str  # /input/.gpubox/NAME@ID
    part: str
    note: str  # touched whenever it is used; its mtime decides who leaves first
    members: str  # what came out of an archive, as lines of a manifest


def find_staged(places: Places, name: str, version: str) -> Staged:
    path = os.path.join(places.input, ".gpubox", f"{name}@{version}")
    link = os.path.join(places.input, name)
    return Staged(name, version, link, path, path + ".part", path + ".used", path + ".members")


def point_to(staged: Staged) -> None:
    """Switch /input/NAME to this version by a rename; what can't be written to is left as it is."""
    target = os.path.relpath(staged.path, os.path.dirname(staged.link))
    with contextlib.suppress(PermissionError, OSError):
        with open(staged.note, "a"):
            os.utime(staged.note, None)
    with contextlib.suppress(OSError):
        if os.readlink(staged.link) == target:
            return
    if not os.access(os.path.dirname(staged.link), os.W_OK):
        return
    if os.path.lexists(staged.link) and not os.path.islink(staged.link):
        from .refusal import Refusal

        raise Refusal(
            "DataError", f"{staged.link} is in the way: not a link of ours", "move it elsewhere"
        )
    fresh = f"{staged.link}.{os.getpid()}.new"
    os.symlink(target, fresh)
    os.replace(fresh, staged.link)


def is_whole(path: str, entry: Entry) -> bool:
    """True where the file at `path` has the size and the content of the entry."""
    try:
        if entry.type == LINK:
            return os.readlink(path) == entry.target
        if os.lstat(path).st_size != entry.size:
            return False
        digest = hashlib.sha256()
        with open(path, "rb", buffering=0) as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
        return digest.hexdigest() == entry.sha256
    except OSError:
        return False


def damage(shelf: Shelf, staged: Staged) -> list[str]:
    """Paths of a staged copy that are not what they should be, by reading all of it."""
    with open_manifest(shelf, staged.version) as (_, entries):
        wrong = [each.path for each in entries if not _stands(staged.path, each)]
    with contextlib.suppress(FileNotFoundError), open(staged.members, encoding="ascii") as lines:
        members = (entry_of(line) for line in lines)
        wrong += [each.path for each in members if not _stands(staged.path, each)]
    return wrong


def _stands(root: str, entry: Entry) -> bool:
    path = os.path.join(root, entry.path)
    if entry.type == ARCHIVE:
        return True  # its members were noted when they were unpacked
    return is_whole(path, entry) if entry.type in (FILE, LINK) else os.path.isdir(path)


@contextlib.contextmanager
def alone(places: Places, name: str, tell: Tell) -> Iterator[None]:
    """One staging of a set at a time; a second one waits and says for whom."""
    folder = os.path.join(places.input, ".gpubox")
    os.makedirs(folder, mode=0o700, exist_ok=True)

    def say(owner: dict[str, Any]) -> None:
        tell(note="waiting for " + describe(owner))

    with locked(os.path.join(folder, name + ".lock"), "stage " + name, wait=WAIT, on_wait=say):
        yield


class Journal:
    """Names what is whole in a copy in the making: slices of the manifest, large files by path.

    It is believed within one boot, since it is not synced; after another boot the copy
    starts again.
    """

    def __init__(self, staged: Staged) -> None:
        self._path = staged.path + ".journal"
        self._names: set[str] = set()
        lines: list[str] = []
        with contextlib.suppress(OSError):
            with open(self._path, encoding="ascii") as file:
                lines = file.read().split("\n")
        self.resuming = os.path.isdir(staged.part)
        if lines and lines[0] == boot_id() and self.resuming:
            self._names = {_name(line) for line in lines[1:-1]}
        else:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            with open(self._path, "w", encoding="ascii") as file:
                file.write(boot_id() + "\n")

    def has(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        self._names.add(name)
        with open(self._path, "a", encoding="ascii") as file:
            file.write(_line(name))

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def _line(name: str) -> str:
    import json

    return json.dumps(name) + "\n"


def _name(line: str) -> str:
    import json

    try:
        return str(json.loads(line))
    except ValueError:
        return ""
