"""PURE: what an upload sends, keeps, moves and removes, and why; where packs are cut."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deploy.errors import DataError, NoSpace
from deploy.onbox.manifest import (
    ARCHIVE,
    FILE,
    FOLDER,
    LINK,
    Change,
    Checker,
    Entry,
    Header,
    check_name,
    entry_of,
    header_line,
    key_of,
    line_of,
    line_of_change,
    line_of_members,
    link_stays_inside,
    read_lines,
    side_by_side,
    spliced,
)
from deploy.onbox.packing import header_size, padded
from deploy.plan.quantities import show_size

PACK_BELOW = 1 << 20  # bytes: a file from here on stands under its own name
MANY = 100  # so many small files are packed; fewer stay as they are
PACK_AT_LEAST = 48 << 20  # bytes: from here on a pack ends at the next cutting point
PACK_AT_MOST = 96 << 20
CUT_ONE_IN = 2048  # paths that are cutting points


class Found(NamedTuple):
    """A file, folder or link on the laptop; `sha256` is empty while its content is not known."""

    path: str
    type: str
    mode: int
    size: int
    mtime: int  # ns
    inode: int = 0
    sha256: str = ""
    target: str = ""


class Step(NamedTuple):
    """What happens to one path: `keep`, `pack`, `file` (both are sent), `reuse`, `note`, `remove`."""

    action: str
    reason: str
    found: Found | None = None  # None: removed
    entry: Entry | None = None  # what the box has under that path, or has the content under


def steps(
    found: Iterable[Found],
    base: Iterable[Entry],
    packing: bool,
    moved: Mapping[str, Entry] | None = None,
) -> Iterator[Step]:
    """Both sides sorted by path; `moved` are contents that lost their path, by checksum."""
    for old, new in side_by_side(base, found):
        if new is None:
            yield Step("remove", "no longer here", None, old)
        else:
            yield _step(new, old, packing, moved or {})


def _step(new: Found, old: Entry | None, packing: bool, moved: Mapping[str, Entry]) -> Step:
    if new.type in (FOLDER, LINK):
        same = old is not None and entry_from(new)._replace(mtime=old.mtime) == old
        return Step("keep", "same", new, old) if same else Step("note", f"new {new.type}", new)
    if new.sha256 and old is not None and (new.sha256, new.type) == (old.sha256, old.type):
        if new.mode == old.mode:
            return Step("keep", "same content", new, old)
        return Step("note", "new mode", new, old)
    if new.sha256 in moved:
        return Step("reuse", f"the content of {moved[new.sha256].path}", new, moved[new.sha256])
    action = "pack" if packing and new.size < PACK_BELOW and new.type == FILE else "file"
    return Step(action, "content changed" if old else "not on the box", new, old)


def entry_from(found: Found, place: Entry | None = None) -> Entry:
    """The manifest's entry of something found here, its content where `place` has it."""
    if found.type == FOLDER:
        return Entry(found.path, FOLDER, found.mode)
    if found.type == LINK:
        digest = hashlib.sha256(found.target.encode("utf-8", "surrogateescape")).hexdigest()
        return Entry(found.path, LINK, 0o777, found.size, found.mtime, digest, target=found.target)
    pack, offset = (place.pack, place.offset) if place else ("", 0)
    return Entry(
        found.path, found.type, found.mode, found.size, found.mtime, found.sha256, pack, offset
    )


def is_packing(layout: str, small_files: int) -> bool:
    """`auto`: many small files are packed, because a network disk pays per file."""
    return layout == "packed" or (layout == "auto" and small_files >= MANY)


def ends_pack(size: int, path: str) -> bool:
    """True where a pack of `size` bytes ends after the file `path`.

    The cutting points depend on names, so that a file that comes or goes moves the ends of
    one or two packs, and an upload that is taken up again finds the others as they were.
    """
    if size < PACK_AT_LEAST:
        return False
    cut = zlib.crc32(path.encode("utf-8", "surrogateescape")) % CUT_ONE_IN == 0
    return cut or size >= PACK_AT_MOST


def part_key(members: Iterable[Found]) -> str:
    """Names a pack or a file while it is on its way: the same files untouched, the same key."""
    digest = hashlib.sha256()
    for each in members:
        line = f"{each.path}\0{each.type}\0{each.mode}\0{each.size}\0{each.mtime}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def boundary(members: Iterable[Found], there: int) -> int:
    """Where in a pack of these members the last one that ends within `there` bytes ends."""
    at = 0
    for each in members:
        end = at + header_size(each.path, each.mtime // 10**9) + padded(each.size)
        if end > there:
            break
        at = end
    return at


WORTH_IT = 0.95  # of a block's size: what hardly gets smaller is sent as it is


def is_worth_squeezing(line: float, squeezing: float, ratio: float) -> bool:
    """Whether a block is through sooner squeezed than as it is.

    `line` and `squeezing` are rates in bytes/s, `ratio` is squeezed over plain size.
    """
    return ratio < WORTH_IT and 1 / squeezing + ratio / line < 1 / line


@dataclass
class Totals:
    """What a plan comes to; `why` counts files by action and reason."""

    send_files: int = 0
    send_bytes: int = 0
    packed_bytes: int = 0  # of those
    plain_files: int = 0
    changes: int = 0
    why: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        self.changes += step.action != "keep"
        reason = step.reason if step.action != "reuse" else "moved or copied"
        key = (step.action, reason)
        self.why[key] = self.why.get(key, 0) + 1
        if step.action in ("pack", "file") and step.found:
            self.send_files += 1
            self.send_bytes += step.found.size
            self.packed_bytes += step.found.size if step.action == "pack" else 0
            self.plain_files += step.action == "file"

    def keep(self, files: int, others: int) -> None:
        """Count what is the same, as if each had been added."""
        for reason, count in (("same content", files), ("same", others)):
            if count:
                self.why["keep", reason] = self.why.get(("keep", reason), 0) + count

    def add_all(self, files: int, small: int, bytes_: int, small_bytes: int, packing: bool) -> None:
        """Count files of which the box has none, as if each had been added; `small` go into packs."""
        packed = small if packing else 0
        self.changes += files
        self.send_files += files
        self.send_bytes += bytes_
        self.packed_bytes += small_bytes if packing else 0
        self.plain_files += files - packed
        for action, count in (("pack", packed), ("file", files - packed)):
            if count:
                self.why[action, "not on the box"] = count

    def add_notes(self, folders: int, links: int) -> None:
        """Count folders and links of which the box has none."""
        self.changes += folders + links
        for kind, count in ((FOLDER, folders), (LINK, links)):
            if count:
                self.why["note", f"new {kind}"] = count

    def parts(self) -> int:
        """About how many packs and files go up: more streams than that have nothing to do."""
        return self.plain_files + -(-self.packed_bytes // PACK_AT_LEAST)

    def lines(self) -> list[str]:
        """`send: 3, not on the box`; of what only the manifest tells, `new folder: 2`."""
        words = {"pack": "send packed", "file": "send"}
        return [
            f"{reason}: {count}"
            if action == "note"
            else f"{words.get(action, action)}: {count}, {reason}"
            for (action, reason), count in sorted(self.why.items())
        ]


def must_fit(totals: Totals, packing: bool, already: int, room: Mapping[str, Any]) -> None:
    """NoSpace where the box's data disk can't take what would be sent, in bytes or in inodes."""
    need = totals.send_bytes + (512 + 256) * totals.send_files + (1 << 20) - already
    where = f"{room['path']} (data disk)"
    if need > room["free"]:
        raise NoSpace(
            f"{where}: {show_size(need)} are needed, {show_size(room['free'])} are free",
            "free some, `fab data` shows old versions, or name another disk: boxes.NAME.data",
        )
    inodes = 16 + (totals.send_bytes // PACK_AT_LEAST if packing else totals.send_files)
    if room["total_inodes"] and inodes > room["free_inodes"]:
        raise NoSpace(
            f"{where}: {inodes} inodes are needed, {room['free_inodes']} are free",
            'layout = "packed" needs far fewer, or free some',
        )


def must_hold_something(files: int, skipped: int, path: str) -> None:
    if files == 0:
        what = f"only files that are skipped ({skipped})" if skipped else "no files"
        raise DataError(f"{path} holds {what}", "name a folder or an archive with data in it")


ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".txz", ".zip")


def is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVES)


MAGIC = {
    "gz": b"\x1f\x8b",
    "tgz": b"\x1f\x8b",
    "xz": b"\xfd7zXZ\0",
    "txz": b"\xfd7zXZ\0",
    "zst": b"\x28\xb5\x2f\xfd",
    "zip": b"PK",
}


def must_be_what_its_name_says(name: str, head: bytes) -> None:
    """DataError where an archive's first 512 bytes don't fit its name."""
    kind = name.lower().rsplit(".", 1)[1]
    fits = head.startswith(MAGIC[kind]) if kind in MAGIC else _is_tar_header(head)
    if not fits:
        other = [ending for ending, magic in MAGIC.items() if head.startswith(magic)]
        looks = f"it looks like .{other[0]}" if other else "its beginning is something else"
        if head.lstrip()[:1] == b"<":
            looks = "it looks like a web page: the download failed"
        raise DataError(f"{name} is not a {kind} file: {looks}", "fetch or make it again")


def _is_tar_header(head: bytes) -> bool:
    """The checksum of a tar header: its bytes added up, the checksum's own field as spaces."""
    if len(head) < 512:
        return False
    said = head[148:156].strip(b" \0")
    total = sum(head[:148]) + sum(head[156:512]) + 8 * 32
    return said != b"" and all(c in b"01234567" for c in said) and int(said, 8) == total


__all__ = [  # what the rooms above take of the manifest, which lives on the box's side
    "ARCHIVE",
    "FILE",
    "FOLDER",
    "LINK",
    "Change",
    "Checker",
    "Entry",
    "Header",
    "check_name",
    "entry_of",
    "header_line",
    "key_of",
    "line_of",
    "line_of_change",
    "line_of_members",
    "link_stays_inside",
    "read_lines",
    "side_by_side",
    "spliced",
]
