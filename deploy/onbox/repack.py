"""Writes packs anew where too much of them is no longer wanted; a pack itself never changes."""

from __future__ import annotations

import hashlib
import os

from .manifest import Entry, header_line, line_of
from .packing import END, tar_header
from .publish import atomic_file, write_json
from .shelf import Shelf, current, lines_of_all, open_manifest, set_current, versions
from .slices import packed
from .unpack import contents

WASTE = 0.30  # of a pack, above which it is written anew


def repack(shelf: Shelf) -> int:
    """Bytes that the new packs are smaller by. The caller holds the lock, and sweeps afterwards."""
    moves: dict[tuple[str, int], tuple[str, int]] = {}
    saved = 0
    for pack, entries in wasteful(shelf):
        before = os.path.getsize(shelf.pack(pack))
        saved += before - _write_anew(shelf, pack, entries, moves)
    if moves:
        write_json(shelf.at("repacking"), {"schema": 1}, shelf.file_mode)
        for version in versions(shelf):
            _rewrite(shelf, version, moves)
        settle(shelf)
    return saved


def settle(shelf: Shelf) -> None:
    """Let `current` name the manifest as it is by now; also after a kill in between."""
    version = current(shelf).get("id", "")
    if version:
        digest = hashlib.sha256()
        with open(shelf.version(version), "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
        set_current(shelf, version, digest.hexdigest())
    if os.path.exists(shelf.at("repacking")):
        os.unlink(shelf.at("repacking"))


def wasteful(shelf: Shelf) -> list[tuple[str, list[Entry]]]:
    """Packs with too much waste, and what is wanted of each: one entry an offset, sorted."""
    wanted: dict[str, dict[int, int]] = {}
    for lines in lines_of_all(shelf):
        for each in packed(lines):
            wanted.setdefault(each.pack, {})[each.offset] = each.size
    chosen = {
        pack
        for pack, sizes in wanted.items()
        if is_wasteful(sum(512 + -(-n // 512) * 512 for n in sizes.values()), _size(shelf, pack))
    }
    found: dict[str, dict[int, Entry]] = {}
    for version in versions(shelf) if chosen else []:
        with open_manifest(shelf, version) as (_, entries):
            for each in entries:
                if each.pack in chosen:
                    found.setdefault(each.pack, {})[each.offset] = each
    return [(pack, [at[o] for o in sorted(at)]) for pack, at in found.items()]


def is_wasteful(wanted: int, size: int) -> bool:
    """PURE: `wanted` of a pack's `size` bytes are too few to keep it."""
    return size > 0 and wanted < (1 - WASTE) * size


def _size(shelf: Shelf, pack: str) -> int:
    path = shelf.pack(pack)
    return os.path.getsize(path) if os.path.exists(path) else 0


def _write_anew(
    shelf: Shelf,
    pack: str,
    entries: list[Entry],
    moves: dict[tuple[str, int], tuple[str, int]],
) -> int:
    """A new pack of the wanted contents, each verified; its size. Nothing moves where one is damaged."""
    digest, at, places = hashlib.sha256(), 0, []
    temporary = shelf.at("packs", ".new")
    with atomic_file(temporary, shelf.file_mode) as file:
        if shelf.gid >= 0:
            os.fchown(file.fileno(), -1, shelf.gid)
        for entry, data in contents(shelf.pack(pack), entries):
            if hashlib.sha256(data).hexdigest() != entry.sha256:
                return os.path.getsize(shelf.pack(pack))  # damage is for `fab upload` to mend
            header = tar_header(entry.path, entry.mode, entry.size, entry.mtime // 10**9)
            block = header + data + bytes(-len(data) % 512)
            places.append((entry.offset, at + len(header)))
            digest.update(block)
            file.write(block)
            at += len(block)
        digest.update(END)
        file.write(END)
    fresh = digest.hexdigest()
    os.rename(temporary, shelf.pack(fresh))
    moves.update({(pack, old): (fresh, new) for old, new in places})
    return at + len(END)


def _rewrite(shelf: Shelf, version: str, moves: dict[tuple[str, int], tuple[str, int]]) -> None:
    """The manifest with contents at their new places; the same ID, since places are no part of it."""
    path = shelf.version(version)
    status = os.stat(path)
    with atomic_file(path, shelf.file_mode) as file:
        if shelf.gid >= 0:
            os.fchown(file.fileno(), -1, shelf.gid)
        with open_manifest(shelf, version) as (header, entries):
            file.write(header_line(header).encode())
            for each in entries:
                pack, offset = moves.get((each.pack, each.offset), (each.pack, each.offset))
                file.write(line_of(each._replace(pack=pack, offset=offset)).encode())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # versions are ordered by it
