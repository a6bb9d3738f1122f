"""Makes a received version the current one: checked first, journalled, then rolled forward.

Once `incoming/commit.json` stands, nothing is needed from the laptop any more: whoever comes next
(`state`, `receive`, staging) finishes what a kill or a power cut left, by the same steps.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections import deque
from typing import Any, Iterable, Iterator

from .damage import mended
from .locks import locked
from .manifest import (
    ARCHIVE,
    FILE,
    Change,
    Checker,
    Entry,
    Header,
    change_of,
    header_line,
    is_safe,
    line_of,
    read_manifest,
    side_by_side,
    spliced,
)
from .places import find_places
from .publish import read_json, sync_file_system, write_json
from .refusal import Refusal
from .shelf import (
    Shelf,
    current,
    find_shelf,
    find_version,
    make_folder,
    open_lines,
    open_manifest,
    set_current,
)
from .within import Tree

LATER = "the same command mends it"


class Draft:
    """The manifest of a version on its way, written while its parts arrive.

    Nothing that is published changes here. `arrived` is told of each part as it is verified.
    """

    def __init__(self, shelf: Shelf, base: str) -> None:
        self.shelf, self.base = shelf, base
        self.arrived = Arrived(shelf)
        self._check = Checker()
        self._body = shelf.at("incoming", "body")

    def write(self, changes: Iterable[str]) -> None:
        """All changes against the base, as lines sorted by key; ValueError where they make no manifest."""
        with open(self._body, "w", encoding="ascii") as file:
            with lines_of(self.shelf, self.base) as base:
                for piece in spliced(base, self._each(changes)):
                    if isinstance(piece, list):
                        self._check.add_lines(piece)
                        file.writelines(piece)
                        continue
                    old, new = piece
                    self.arrived.see(old, new)
                    if new is not None:
                        self._check.add(new)
                        file.write(line_of(new))

    def _each(self, lines: Iterable[str]) -> Iterator[Change]:
        for line in lines:
            if line[0] == "*":
                pack, _, count = line[1:].partition(" ")
                yield from self.arrived.next_of(pack, int(count))
            else:
                yield change_of(line)

    def drop(self) -> None:
        """Nothing of it is needed any more: what was changed is asked for again by the laptop."""
        if os.path.exists(self._body):
            os.unlink(self._body)

    def publish(self, version: str, header: Header) -> None:
        """Check it against what the laptop says, put the header before it, write the journal."""
        self.arrived.must_have_all(self._check.packs)
        counted = self._check.header(header.created)
        if self._check.version() != version or counted[:4] != header[:4]:
            raise Refusal(
                "VerifyError",
                f"{self.shelf.name}: the manifest that arrived is not the one sent",
                LATER,
            )
        with open(self._body, "rb") as body, open(
            self.shelf.at("incoming", "manifest"), "wb"
        ) as file:
            self.shelf.give(file.fileno())
            file.write(header_line(header).encode())
            shutil.copyfileobj(body, file, 1 << 20)
        self.drop()
        sync_file_system(self.shelf.own)
        journal = {"schema": 1, "base": self.base, "id": version}
        journal.update(packs=sorted(self.arrived.packs_to_move), plain=self.arrived.touches_plain)
        write_json(self.shelf.at("incoming", "commit.json"), journal)


@contextlib.contextmanager
def lines_of(shelf: Shelf, version: str) -> Iterator[Iterable[list[str]]]:
    """The entries' lines of a version, many at once, as a stream; none for ""."""
    if not version:
        yield ()
        return
    with open_lines(shelf, version) as (_, lines):
        yield lines


class Arrived:
    """Knows which contents are on the box, so that no manifest can name one that is not."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        # by pack: what is in it, until its place in the manifest is told
        self._untold: dict[str, deque[Entry]] = {}
        self.whole = whole_parts(shelf)
        self.sizes: dict[str, int] = {}  # of packs
        self.retired: set[str] = set()  # plain files that lose their path: another may take them
        self.awaited: dict[
            str, int
        ] = {}  # packs that may still come by another stream, and how large
        self.missing: list[Entry] = []
        self.packs_to_move: set[str] = set()
        self.touches_plain = False  # else the commit need not look at every path again

    def part(self, sha256: str, path: str, size: int, members: list[Entry]) -> None:
        """A part is whole and verified, and will be at `path` by the time of the commit.

        members  of a pack that was taken from its beginning: all that is in it
        """
        self.sizes[sha256], self.whole[sha256] = size, path
        if members:
            self._untold[sha256] = deque(members)

    def next_of(self, pack: str, count: int) -> Iterator[Change]:
        """The next files of a pack that was taken just now, as changes."""
        untold = self._untold.get(pack) or deque()
        if count > len(untold):
            raise Refusal("TransferError", f"pack {pack[:12]} has not arrived whole", LATER)
        for _ in range(count):
            entry = untold.popleft()
            if not is_safe(entry.path):
                raise ValueError(f"unsafe path in a pack: {entry.path!r}")
            yield entry.path, entry._replace(pack=pack)
        if not untold:
            self._untold.pop(pack, None)

    def see(self, old: Entry | None, new: Entry | None) -> None:
        if old is not None and _is_plain(old) and not _same_place(old, new):
            self.retired.add(old.sha256)
            self.touches_plain = True
        if new is None or new.type not in (FILE, ARCHIVE):
            return
        if new == old:
            return
        if new.pack:
            end = new.offset + new.size
            if end > self._pack_size(new.pack):
                self.awaited[new.pack] = max(end, self.awaited.get(new.pack, 0))
            return
        self.touches_plain = True
        kept = self.shelf.at("old", new.sha256)
        if new.sha256 not in self.whole and not _same_place(new, old) and not os.path.exists(kept):
            self.missing.append(new)

    def must_have_all(self, named: set[str]) -> None:
        """All streams have ended by now: what they brought lies there, or it does not come.

        named  the packs that the manifest names
        """
        self.whole, self.sizes = whole_parts(self.shelf), {}
        self.packs_to_move = named & self.whole.keys()  # also where one is damaged there
        self.touches_plain |= not self.whole.keys() <= named
        for pack, end in self.awaited.items():
            if end > self._pack_size(pack):
                raise Refusal("TransferError", f"pack {pack[:12]} has not arrived whole", LATER)
        for entry in self.missing:
            if entry.sha256 not in self.retired and entry.sha256 not in self.whole:
                raise Refusal("TransferError", f"{entry.path!r} has not arrived whole", LATER)

    def _pack_size(self, sha256: str) -> int:
        if sha256 not in self.sizes:
            path = self.whole.get(sha256) or self.shelf.pack(sha256)
            self.sizes[sha256] = os.path.getsize(path) if os.path.exists(path) else -1
        return self.sizes[sha256]


def whole_parts(shelf: Shelf) -> dict[str, str]:
    """SHA-256 → path of the parts that arrived whole and verified."""
    folder = shelf.at("incoming")
    pairs = (name.partition("=") for name in os.listdir(folder))
    return {sha: os.path.join(folder, f"{key}={sha}") for key, _, sha in pairs if len(sha) == 64}


def roll_forward(shelf: Shelf) -> None:
    """Finish a commit whose journal stands; every step may have been done before already."""
    try:
        journal = read_json(shelf.at("incoming", "commit.json"))
    except FileNotFoundError:
        return
    fresh = shelf.at("incoming", "manifest")
    if os.path.exists(fresh):
        _move_packs(shelf, journal["packs"])
        if journal["plain"]:
            _put_in_place(shelf, journal["base"], fresh)
        sync_file_system(shelf.own)
        os.rename(fresh, shelf.version(journal["id"]))
    set_current(shelf, journal["id"], sha256_of(shelf.version(journal["id"])))
    mended(shelf)
    os.unlink(shelf.at("incoming", "commit.json"))
    shutil.rmtree(shelf.at("incoming"))
    make_folder(shelf, shelf.at("incoming"))


def activate(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Make a version that is there the current one: its plain files come back from `old`."""
    shelf = find_shelf(find_places(request), request["name"])
    wanted = find_version(shelf, request["version"])
    with locked(shelf.at("lock"), "activate", wait=60):
        roll_forward(shelf)
        if current(shelf).get("id") != wanted:
            fresh = shelf.at("incoming", "manifest")
            shutil.copyfile(shelf.version(wanted), fresh)
            journal = {"schema": 1, "base": current(shelf).get("id", ""), "id": wanted}
            journal.update(packs=[], plain=True)
            write_json(shelf.at("incoming", "commit.json"), journal)
            roll_forward(shelf)
    return {"id": wanted}


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _move_packs(shelf: Shelf, packs: Iterable[str]) -> None:
    whole = whole_parts(shelf)
    for sha256 in packs:
        if sha256 in whole:
            os.rename(whole[sha256], shelf.pack(sha256))


def _put_in_place(shelf: Shelf, base: str, fresh: str) -> None:
    """Old plain files out of the way first, then the new ones to their places."""
    whole = whole_parts(shelf)
    with Tree(shelf.root, shelf.folder_mode, shelf.gid) as tree:
        for old, new in _pairs(shelf, base, fresh):
            if old is not None and _is_plain(old) and not _same_place(old, new):
                _retire(shelf, tree, old)
        for old, new in _pairs(shelf, base, fresh):
            if new is None or not _is_plain(new):
                continue
            if new.sha256 in whole or not _same_place(new, old):
                _place(shelf, tree, new, whole.get(new.sha256, ""))


def _pairs(shelf: Shelf, base: str, fresh: str) -> Iterator[Any]:
    """Each path's entry before and after."""
    with contextlib.ExitStack() as opened:
        old = opened.enter_context(open_manifest(shelf, base))[1] if base else ()
        file = opened.enter_context(open(fresh, encoding="ascii"))
        yield from side_by_side(old, read_manifest(file)[1])


def _is_plain(entry: Entry) -> bool:
    return entry.type in (FILE, ARCHIVE) and not entry.pack


def _same_place(a: Entry, b: Any) -> bool:
    return b is not None and _is_plain(b) and a.sha256 == b.sha256


def _retire(shelf: Shelf, tree: Tree, entry: Entry) -> None:
    """Keep a replaced file's content under its checksum, for the versions that still name it."""
    kept = shelf.at("old", entry.sha256)
    found = tree.size(entry.path)
    if found is None:
        return
    if found == entry.size and not os.path.exists(kept):
        tree.rename_out(entry.path, kept)
    elif found == entry.size:
        tree.unlink(entry.path)
    tree.prune(entry.path)


def _place(shelf: Shelf, tree: Tree, entry: Entry, part: str) -> None:
    """The content to its path: from the part that arrived, or from what was retired just now."""
    if part and os.path.exists(part):
        os.utime(part, ns=(entry.mtime, entry.mtime))
        # one content at two paths: the part stays until both have it
        _link_or_copy(part, tree, entry)
    elif tree.size(entry.path) != entry.size and os.path.exists(shelf.at("old", entry.sha256)):
        _link_or_copy(shelf.at("old", entry.sha256), tree, entry)


def _link_or_copy(source: str, tree: Tree, entry: Entry) -> None:
    try:
        tree.link_in(source, entry.path)
    except OSError as no:
        if no.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        tree.copy_in(source, entry.path)
