"""Stages a plain folder that someone else put on /data: no manifest, many readers, shuffled order."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator

from .activity import active
from .manifest import FILE, FOLDER, LINK, Entry, key_of, link_stays_inside
from .places import Places
from .plain import SMALL_READERS, Plain, copy_plain
from .progress import Progress
from .publish import publish_folder
from .receive import out_of_room
from .refusal import Refusal
from .room import block_size, make_room
from .shelf import Shelf
from .staged import Staged, alone, find_staged, point_to

Tell = Callable[..., None]


def stage_foreign(places: Places, shelf: Shelf, tell: Tell) -> dict[str, Any]:
    """As `stage_set` answers; the version is a checksum over paths, sizes and times."""
    began = time.monotonic()
    tell(note=f"{shelf.root} has no manifest: it is copied as it is, checked by size only")
    entries = walk(shelf.root)
    files = [each for each in entries if each.type == FILE]
    if not files:
        raise Refusal("DataError", f"{shelf.root} holds no files", "upload a data set: fab upload")
    staged = find_staged(places, shelf.name, fingerprint(entries))
    already = os.path.isdir(staged.path)
    if not already:
        with active("stage " + shelf.name), alone(places, shelf.name, tell):
            if not os.path.isdir(staged.path):
                _copy(places, shelf, staged, entries, tell)
    point_to(staged)
    return {
        "path": staged.path,
        "link": staged.link,
        "version": staged.version,
        "files": len(files),
        "bytes": sum(each.size for each in files),
        "already": already,
        "seconds": round(time.monotonic() - began, 3),
    }


def walk(root: str) -> list[Entry]:
    """Everything below `root` in the order of a manifest; folders are read by many readers."""
    found: list[Entry] = []
    with ThreadPoolExecutor(SMALL_READERS) as pool:
        level = [""]
        while level:
            read = [
                each
                for part in pool.map(lambda rel: list_folder(root, rel), level)
                for each in part
            ]
            found += read
            level = [each.path + "/" for each in read if each.type == FOLDER]
    return sorted(found, key=key_of)


def list_folder(root: str, prefix: str) -> list[Entry]:
    with os.scandir(os.path.join(root, prefix)) as entries:
        return [entry for each in entries for entry in _entry(prefix + each.name, each)]


def _entry(path: str, found: os.DirEntry[str]) -> Iterator[Entry]:
    status = found.stat(follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISDIR(status.st_mode):
        yield Entry(path, FOLDER, mode)
    elif stat.S_ISREG(status.st_mode):
        yield Entry(path, FILE, mode, status.st_size, status.st_mtime_ns)
    elif stat.S_ISLNK(status.st_mode):
        target = os.readlink(found.path)
        if not link_stays_inside(path, target):
            raise Refusal("DataError", f"{found.path} is a link out of the set", "remove it")
        yield Entry(path, LINK, 0o777, len(target), target=target)
    # a socket, a fifo or a device is nothing to train on


def fingerprint(entries: list[Entry]) -> str:
    digest = hashlib.sha256()
    for each in entries:
        line = f"{each.path}\0{each.type}\0{each.size}\0{each.mtime}\0{each.target}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _copy(places: Places, shelf: Shelf, staged: Staged, entries: list[Entry], tell: Tell) -> None:
    block = block_size(places.input)
    size = sum(-(-each.size // block) * block for each in entries)
    make_room(places, staged, size, len(entries), tell)
    os.makedirs(staged.part, mode=0o700, exist_ok=True)
    told = Progress(sum(each.size for each in entries), tell)
    wanted: list[Plain] = []
    for each in entries:
        target = os.path.join(staged.part, each.path)
        if each.type == FOLDER:
            os.makedirs(target, mode=each.mode | 0o700, exist_ok=True)
        elif os.path.lexists(target) and _same(target, each):
            told.add(each)
        else:
            _drop(target)
            if each.type == LINK:
                os.symlink(each.target, target)
            else:
                wanted.append(Plain(each, (os.path.join(shelf.root, each.path),)))
    try:
        copy_plain(wanted, staged.part, lambda done: told.add(done.entry))
        publish_folder(staged.part, staged.path)
    except OSError as no:
        raise out_of_room(no, places.input) from no


def _same(path: str, entry: Entry) -> bool:
    """A whole file of an earlier attempt: its time is set after its last byte was written."""
    status = os.lstat(path)
    return (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime)


def _drop(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
