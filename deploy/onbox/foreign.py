"""Stages a plain folder that someone else put on /data: no manifest, many readers.

A network disk pays a round trip for each look at a file, and queues them within one folder. So
sizes are learnt from files as they are opened; a walk that looks at each comes only where there
is a staged copy to compare with.
"""

from __future__ import annotations

import hashlib
import os
import random
import stat
import time
from functools import partial
from typing import Any, Callable, Iterable, Iterator

from .activity import active
from .crew import Hand, cores, share_out
from .manifest import FILE, FOLDER, LINK, Entry, key_of, link_stays_inside
from .places import Places
from .plain import BATCH, SMALL, SMALL_READERS, Plain, copy_plain
from .progress import Progress
from .reading import ahead, spread
from .refusal import Refusal
from .room import block_size, make_room
from .settled import is_settled, publish, set_aside
from .shelf import Shelf
from .staged import Staged, alone, find_staged, point_to
from .unpack import write_verified

Tell = Callable[..., None]
FEW = 500  # files that one process copies as soon as several
SAMPLE = 256  # files whose sizes stand for all, where the room is checked before the copy


def stage_foreign(places: Places, shelf: Shelf, tell: Tell) -> dict[str, Any]:
    """As `stage_set` answers; the version is a checksum over paths, sizes and times."""
    began = time.monotonic()
    tell(note=f"{shelf.root} has no manifest: it is copied as it is, checked by size only")
    with active("stage " + shelf.name), alone(places, shelf.name, tell):
        names = walk(shelf.root)
        if not any(kind == FILE for _, kind in names):
            raise Refusal("DataError", f"{shelf.root} holds no files", "fab upload brings some")
        staged, entries = find_copy(places, shelf, names)
        already = bool(entries)
        if not already:
            staged, entries = _copy(places, shelf, names, tell)
    point_to(staged)
    return {
        "path": staged.path,
        "link": staged.link,
        "version": staged.version,
        "files": sum(each.type == FILE for each in entries),
        "bytes": sum(each.size for each in entries),
        "already": already,
        "seconds": round(time.monotonic() - began, 3),
    }


def walk(root: str) -> list[tuple[str, str]]:
    """Paths and types of all below `root`; sockets, fifos and devices are nothing to train on."""
    found: list[tuple[str, str]] = []
    level = [""]
    while level:
        parts = ahead((partial(_list, root, path) for path in level), SMALL_READERS)
        read = [each for part in parts for each in part]
        found += read
        level = [path + "/" for path, kind in read if kind == FOLDER]
    return found


def _list(root: str, prefix: str) -> list[tuple[str, str]]:
    found = []
    with os.scandir(os.path.join(root, prefix)) as entries:
        for each in entries:
            if each.is_symlink():
                found.append((prefix + each.name, LINK))
            elif each.is_dir(follow_symlinks=False):
                found.append((prefix + each.name, FOLDER))
            elif each.is_file(follow_symlinks=False):
                found.append((prefix + each.name, FILE))
    return found


def look_at(root: str, path: str) -> Entry:
    full = os.path.join(root, path)
    return _entry(path, full, os.lstat(full))


def _entry(path: str, full: str, status: os.stat_result) -> Entry:
    mode = status.st_mode & 0o777
    if stat.S_ISDIR(status.st_mode):
        return Entry(path, FOLDER, mode)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(full)
        if not link_stays_inside(path, target):
            raise Refusal("DataError", f"{full} is a link out of the set", "remove it")
        return Entry(path, LINK, 0o777, len(target), target=target)
    return Entry(path, FILE, mode, status.st_size, status.st_mtime_ns)


def in_parallel(work: Callable[[str], Entry], paths: Iterable[str]) -> list[Entry]:
    """`work` on every path by many readers, in batches."""
    ordered = spread(paths)
    batches = (ordered[at : at + BATCH] for at in range(0, len(ordered), BATCH))
    jobs = (partial(_each, work, batch) for batch in batches)
    return [entry for batch in ahead(jobs, SMALL_READERS) for entry in batch]


def _each(work: Callable[[str], Entry], paths: list[str]) -> list[Entry]:
    return [work(path) for path in paths]


def find_copy(
    places: Places, shelf: Shelf, names: list[tuple[str, str]]
) -> tuple[Staged, list[Entry]]:
    """The staged copy of the folder as it is now, and its entries; no entries where there is none."""
    none = find_staged(places, shelf.name, "copying")
    folder = os.path.dirname(none.path)
    if not any(name.startswith(shelf.name + "@") for name in os.listdir(folder)):
        return none, []
    entries = in_parallel(partial(look_at, shelf.root), (path for path, _ in names))
    staged = find_staged(places, shelf.name, fingerprint(entries))
    if os.path.isdir(staged.path) and not is_settled(staged):
        set_aside(staged)  # there are no checksums to verify it by
    return staged, entries if os.path.isdir(staged.path) else []


def fingerprint(entries: Iterable[Entry]) -> str:
    digest = hashlib.sha256()
    for each in sorted(entries, key=key_of):
        line = f"{each.path}\0{each.type}\0{each.size}\0{each.mtime}\0{each.target}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _copy(
    places: Places, shelf: Shelf, names: list[tuple[str, str]], tell: Tell
) -> tuple[Staged, list[Entry]]:
    """Copy all into a part whose version is known only at the end."""
    making = find_staged(places, shelf.name, "copying")
    root, part = shelf.root, making.part
    files = [path for path, kind in names if kind == FILE]
    expected = expected_room(root, files, block_size(places.input))
    make_room(places, making, expected, len(names), tell)
    told = Progress(expected, tell)
    folders = sorted(path for path, kind in names if kind == FOLDER)
    links = [look_at(root, path) for path, kind in names if kind == LINK]
    try:
        for path in ["", *folders]:
            os.makedirs(os.path.join(part, path), mode=0o700, exist_ok=True)
        for each in links:
            _drop(os.path.join(part, each.path))
            os.symlink(each.target, os.path.join(part, each.path))
        entries = _take_all(root, part, files, told)
        large = [each for each in entries if each.size > SMALL and not _same(part, each)]
        for each in large:
            _drop(os.path.join(part, each.path))
        plain = [Plain(each, (os.path.join(root, each.path),)) for each in large]
        copy_plain(plain, part, lambda done: told.add(done.entry.size, done.entry.path))
        entries += links + in_parallel(partial(look_at, root), folders)
        staged = find_staged(places, shelf.name, fingerprint(entries))._replace(part=part)
        publish(staged)
    except OSError as no:
        from .receive import out_of_room

        raise out_of_room(no, places.input) from no
    return staged, entries


def _take_all(root: str, part: str, files: list[str], told: Progress) -> list[Entry]:
    """Copy those that are small, by several processes of many readers each; the entries of all."""
    ordered = spread(files)
    entries: list[Entry] = []
    count = cores() if len(files) > FEW else 1
    work = partial(_take_batches, ordered, root, part, max(8, SMALL_READERS // count))
    pieces = ((at, min(BATCH, len(ordered) - at)) for at in range(0, len(ordered), BATCH))
    for at, taken in share_out(work, pieces, count):
        for path, (mode, size, mtime, copied) in zip(ordered[at : at + len(taken)], taken):
            entries.append(Entry(path, FILE, mode, size, mtime))
            if copied:
                told.add(size, path)
    return entries


def _take_batches(
    ordered: list[str], root: str, part: str, readers: int, hand: Hand
) -> Iterator[Any]:
    """Tells where in `ordered` a batch begins, and mode, size, time and `copied` of each in it."""

    def batch(at: int, length: int) -> tuple[int, list[tuple[int, int, int, bool]]]:
        return at, [_take(root, part, path) for path in ordered[at : at + length]]

    for done in ahead((partial(batch, *piece) for piece in iter(hand.take, None)), readers):
        hand.check()
        yield done


def expected_room(root: str, files: list[str], block: int) -> int:
    """Bytes that the files will take: of all where they are few, else by a sample of them."""
    chosen = random.Random(0).sample(files, min(SAMPLE, len(files)))
    sizes = [each.size for each in in_parallel(partial(look_at, root), chosen)]
    taken = sum(-(-size // block) * block for size in sizes)
    return taken * len(files) // max(1, len(chosen))


def _take(root: str, part: str, path: str) -> tuple[int, int, int, bool]:
    """Copy one file if it is small; learn its mode, size and time in any case."""
    source, target = os.path.join(root, path), os.path.join(part, path)
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        entry = _entry(path, source, os.fstat(fd))
        if entry.size > SMALL or _same(part, entry):
            return entry.mode, entry.size, entry.mtime, False
        data = os.read(fd, entry.size + 1)
        while len(data) < entry.size and (more := os.read(fd, entry.size - len(data))):
            data += more
    finally:
        os.close(fd)
    if len(data) != entry.size:
        raise Refusal("DataError", f"{source} changed while it was staged", "stage it again")
    _drop(target)
    write_verified(target, data, entry, source)
    return entry.mode, entry.size, entry.mtime, True


def _same(part: str, entry: Entry) -> bool:
    """A whole file of an earlier attempt: its time is set after its last byte was written."""
    try:
        status = os.lstat(os.path.join(part, entry.path))
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime)


def _drop(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
