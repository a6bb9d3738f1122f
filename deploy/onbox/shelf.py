"""Where a data set lies on /data: its folder, its packs, versions and what is still coming in."""

from __future__ import annotations

import contextlib
import grp
import os
import stat
from itertools import chain, islice
from typing import Any, Iterator, NamedTuple, TextIO

from . import manifest
from .places import Places
from .publish import read_json, write_json
from .refusal import Refusal


class Shelf(NamedTuple):
    """/data/NAME and /data/NAME/.gpubox, with the modes and the group of what is made there."""

    name: str
    root: str
    own: str
    gid: int = -1
    file_mode: int = 0o600
    folder_mode: int = 0o700

    def at(self, *parts: str) -> str:
        return os.path.join(self.own, *parts)

    def pack(self, sha256: str) -> str:
        return self.at("packs", sha256 + ".tar")

    def version(self, version: str) -> str:
        return self.at("versions", version + ".jsonl")

    def give(self, fd: int) -> None:
        """Mode and group of a file that was just made."""
        os.fchmod(fd, self.file_mode)
        if self.gid >= 0:
            os.fchown(fd, -1, self.gid)


def find_shelf(places: Places, name: str, group: str = "") -> Shelf:
    """The shelf of a name, there or not; Refusal for a bad name or a group that is not there."""
    wrong = manifest.check_name(name)
    if wrong:
        raise Refusal("UsageError", wrong, "choose another with --name")
    root = os.path.join(places.data, name)
    shelf = Shelf(name, root, os.path.join(root, manifest.RESERVED_IN_SET))
    if not group:
        return shelf
    try:
        return shelf._replace(gid=grp.getgrnam(group).gr_gid, file_mode=0o640, folder_mode=0o2750)
    except KeyError:
        raise Refusal(
            "BoxUnfit", f"no group {group!r} on the box", "set data_group to one that is there"
        ) from None


def make_shelf(shelf: Shelf) -> None:
    """Make the folders that are missing; a folder that is a link or someone else's is refused."""
    fresh = make_folder(shelf, shelf.root)
    if not fresh and not os.path.lexists(shelf.own) and os.listdir(shelf.root):
        raise Refusal(
            "DataError",
            f"{shelf.root} holds files that were not uploaded by this kit",
            "stage it as it is, or upload under another --name",
        )
    for each in ("", "packs", "versions", "incoming", "old"):
        make_folder(shelf, shelf.at(each) if each else shelf.own)


def make_folder(shelf: Shelf, path: str) -> bool:
    """True where it was made now."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        check_owner(path)
        return False
    if shelf.gid >= 0:
        os.chown(path, -1, shelf.gid)
    os.chmod(path, shelf.folder_mode)
    return True


def check_owner(path: str) -> None:
    """Refuse a folder that is a link, or that belongs to somebody else (nobody plants us a link)."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal("DataError", f"{path} is not a folder", "remove it, or use another --name")
    if found.st_uid != os.getuid() and os.getuid() != 0:
        raise Refusal("DataError", f"{path} belongs to another user", "use another --name")


def current(shelf: Shelf) -> dict[str, Any]:
    """{id, manifest (SHA-256 of the manifest file)}, or an empty one where nothing is whole yet."""
    try:
        return read_json(shelf.at("current"))
    except FileNotFoundError:
        return {}


def set_current(shelf: Shelf, version: str, manifest_sha256: str) -> None:
    value = {"schema": 1, "id": version, "manifest": manifest_sha256}
    write_json(shelf.at("current"), value, shelf.file_mode)


def versions(shelf: Shelf) -> list[str]:
    """IDs of the versions that are there, newest first."""
    try:
        names = [n for n in os.listdir(shelf.at("versions")) if n.endswith(".jsonl")]
    except FileNotFoundError:
        return []
    ids = [name[: -len(".jsonl")] for name in names]
    return sorted(ids, key=lambda each: os.stat(shelf.version(each)).st_mtime, reverse=True)


def find_version(shelf: Shelf, wanted: str) -> str:
    """The ID of "current", or of the beginning of one; Refusal where it is none or several."""
    if wanted in ("", "current"):
        found = [current(shelf).get("id", "")]
    else:
        found = [each for each in versions(shelf) if each.startswith(wanted)]
    if len(found) == 1 and found[0]:
        return str(found[0])
    what = f"version {wanted}" if found or wanted not in ("", "current") else "data set"
    raise Refusal(
        "NoSuchRun", f"{shelf.name}: no {what} on the box", "`fab data` lists what is there"
    )


@contextlib.contextmanager
def open_manifest(
    shelf: Shelf, version: str
) -> Iterator[tuple[manifest.Header, Iterator[manifest.Entry]]]:
    """Header and entries (a stream, while the block lasts) of a version; Refusal where damaged."""
    with _opened(shelf, version) as file:
        yield manifest.read_manifest(file)


@contextlib.contextmanager
def open_lines(shelf: Shelf, version: str) -> Iterator[tuple[manifest.Header, Iterator[list[str]]]]:
    """As `open_manifest`, but the entries as their lines, many at once."""
    with _opened(shelf, version) as file:
        yield manifest.read_lines(file)


def lines_of_all(shelf: Shelf) -> Iterator[bytes]:
    """The entries' lines of all versions, many at once; what two have one after the other comes once."""
    newer = ""
    for version in versions(shelf):
        with contextlib.ExitStack() as opened:
            pieces = opened.enter_context(open_lines(shelf, version))[1]
            lines: Iterator[str] = chain.from_iterable(pieces)
            if newer:
                before = opened.enter_context(open_lines(shelf, newer))[1]
                lines = manifest.only_new(chain.from_iterable(before), lines)
            while block := list(islice(lines, 4096)):
                yield "".join(block).encode("ascii")
        newer = version


@contextlib.contextmanager
def _opened(shelf: Shelf, version: str) -> Iterator[TextIO]:
    path = shelf.version(version)
    try:
        with open(path, encoding="ascii") as file:
            yield file
    except FileNotFoundError:
        raise Refusal(
            "NoSuchRun", f"{shelf.name}: no version {version[:12]} on the box", "fab data"
        ) from None
    except (ValueError, TypeError) as no:
        raise Refusal("DataError", f"{path}: {no}", "upload the set again") from None


def incoming(shelf: Shelf) -> dict[str, list[Any]]:
    """What is still coming in: key → [bytes that are there, SHA-256 or "" while it is not whole]."""
    found: dict[str, list[Any]] = {}
    try:
        names = os.listdir(shelf.at("incoming"))
    except FileNotFoundError:
        return found
    for name in names:
        key, _, sha256 = name.partition("=")
        if len(key) == 64:
            found[key] = [os.stat(shelf.at("incoming", name)).st_size, sha256]
    return found


def state(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """What an upload has to know before it plans: what is there, what is half there, how much room."""
    from .commit import roll_forward
    from .damage import noted
    from .disks import disk
    from .locks import locked
    from .places import find_places

    places = find_places(request)
    shelf = find_shelf(places, request["name"])
    if os.path.exists(shelf.at("incoming", "commit.json")):
        with locked(shelf.at("lock"), "finish an upload", wait=60):
            roll_forward(shelf)
    if os.path.exists(shelf.at("repacking")):
        from .repack import settle

        with locked(shelf.at("lock"), "finish repacking", wait=60):
            settle(shelf)
    if os.path.lexists(shelf.own):
        check_owner(shelf.own)
    room = disk(places.data)
    return {
        **{key: current(shelf).get(key, "") for key in ("id", "manifest")},
        "versions": versions(shelf),
        "incoming": incoming(shelf),
        "damaged": noted(shelf),
        "folder": shelf.root,
        "room": room,
        "notes": places.notes,
        "zstd": _has_zstd(),
    }


def _has_zstd() -> bool:
    import shutil

    return shutil.which("zstd") is not None


def send_manifest(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """The manifest of a version as a zlib stream in frames."""
    import zlib

    from .places import find_places

    shelf = find_shelf(find_places(request), request["name"])
    wire.start_bulk()
    squeeze = zlib.compressobj(1)
    with open(shelf.version(find_version(shelf, request["version"])), "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            squeezed = squeeze.compress(block)
            if squeezed:
                wire.frame(squeezed)
    wire.frame(squeeze.flush())
    wire.frame(b"")
    return {}
