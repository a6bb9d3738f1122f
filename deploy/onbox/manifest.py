"""PURE: the manifest of a data set's version: entries, their lines, their order, and the version's ID."""

from __future__ import annotations

import hashlib
import json
import re
from json.encoder import encode_basestring_ascii as quoted
from operator import lt
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

SCHEMA = 1
FILE, FOLDER, LINK, ARCHIVE = "file", "folder", "link", "archive"
RESERVED_IN_SET = ".gpubox"
RESERVED_NAMES = ("runs",)
BLOCK = 1 << 20  # characters of lines that are looked at together


class Entry(NamedTuple):
    """One line of a manifest. `pack` is empty for a file that stands under its own name."""

    path: str  # UTF-8 with surrogateescape, "/" between its parts, relative to the set
    type: str
    mode: int = 0o600  # & 0777
    size: int = 0  # bytes; of a link, the length of its target
    mtime: int = 0  # ns since 1970
    sha256: str = ""  # of the content; of a link, of its target; empty for a folder
    pack: str = ""  # SHA-256 of the pack that holds the content at `offset`
    offset: int = 0
    target: str = ""  # of a link


class Header(NamedTuple):
    """The first line of a manifest: what it holds in all."""

    files: int
    folders: int
    links: int
    bytes: int
    created: float  # s since 1970, by the laptop's clock
    zip_names: str = ""  # encoding of names in an archive that does not say it


def key_of(entry: Any) -> str:
    """Entries are sorted by this: a folder stands right before what is in it."""
    return str(entry.path) + "/" if entry.type == FOLDER else str(entry.path)


def line_of(entry: Entry) -> str:
    """One JSON object on one line, ASCII, keys in a fixed order: equal entries, equal bytes."""
    head = f'{{"path": {quoted(entry.path)}, "type": "{entry.type}", "mode": {entry.mode}'
    if entry.type == FOLDER:
        return head + "}\n"
    head += f', "size": {entry.size}, "mtime": {entry.mtime}, "sha256": "{entry.sha256}"'
    if entry.pack:
        head += f', "pack": "{entry.pack}", "offset": {entry.offset}'
    if entry.type == LINK:
        head += f', "target": {quoted(entry.target)}'
    return head + "}\n"


# The usual line of a file or a folder, read four times faster than as JSON, and many of them at
# once still faster; any other goes through json.loads.
NUMBER = r"([1-9][0-9]*|0)"  # as an int is written: these go into the ID as they are
USUAL = re.compile(
    r'\{"path": "([^"\\]*(?:\\.[^"\\]*)*)", "type": "(?:'
    rf'file", "mode": {NUMBER}, "size": {NUMBER}, "mtime": (-?[0-9]+), "sha256": "([0-9a-f]{{64}})"'
    rf'(?:, "pack": "([0-9a-f]{{64}})", "offset": ([0-9]+))?|folder", "mode": {NUMBER})\}}\n'
)


def entry_of(line: str) -> Entry:
    """The entry of a line; ValueError where the line is not one or its path is not safe."""
    usual = USUAL.fullmatch(line)
    if usual:
        entry = usual_entry(*usual.groups(""))
    else:
        try:
            entry = Entry(**json.loads(line))
        except TypeError as no:
            raise ValueError(f"not a line of a manifest: {no}") from None
    if not is_safe(entry.path):
        raise ValueError(f"unsafe path in a manifest: {entry.path!r}")
    return entry


def usual_entry(
    text: str, mode: str, size: str, mtime: str, sha256: str, pack: str, offset: str, folder: str
) -> Entry:
    """Of the groups that USUAL finds in a line."""
    path = unquoted(text)
    if folder:
        return Entry(path, FOLDER, int(folder))
    return Entry(path, FILE, int(mode), int(size), int(mtime), sha256, pack, int(offset or 0))


def unquoted(text: str) -> str:
    """A JSON string without its quotes."""
    return text if "\\" not in text else str(json.loads(f'"{text}"'))


def key_of_line(line: str) -> str:
    """As `key_of` of its entry, but nothing else in the line is looked at."""
    end = line.find('", "type": "')
    if end < 0 or not line.startswith('{"path": "'):
        return key_of(entry_of(line))
    path = unquoted(line[10:end])
    return path + "/" if line.startswith('folder"', end + 12) else path


def header_line(header: Header) -> str:
    return json.dumps({"schema": SCHEMA, **header._asdict()}) + "\n"


def header_of(line: str) -> Header:
    """The header of a first line; ValueError where it is another file or a later schema."""
    fields = dict(json.loads(line))
    if fields.pop("schema", None) != SCHEMA:
        raise ValueError("not a manifest, or one of a newer kit")
    return Header(**fields)


def read_lines(file: Any) -> tuple[Header, Iterator[list[str]]]:
    """Header and entries of a manifest's text file, these as lists of some whole lines."""
    return header_of(file.readline()), iter(lambda: file.readlines(BLOCK), [])


def read_manifest(lines: Iterable[str]) -> tuple[Header, Iterator[Entry]]:
    """Header and entries of a manifest's lines, read as a stream."""
    stream = iter(lines)
    return header_of(next(stream, "{}")), (entry_of(line) for line in stream)


AFTER_ALL = "\U0010ffff\U0010ffff"  # no path sorts after this
UNSAFE = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)|\0|^\.gpubox(?:/|\Z)")
MAY_BE_UNSAFE = ("/.", "//", "/\n", "\n.", "\n/", "\n\n", "\0")  # in paths with line ends around


def is_safe(path: str) -> bool:
    """A relative path whose parts are all names: no "..", no empty part, no NUL, not reserved."""
    return UNSAFE.search(path) is None


def link_stays_inside(path: str, target: str) -> bool:
    """True where a link at `path` (relative to the set) leads to a place inside the set."""
    if not target or target.startswith("/") or "\0" in target:
        return False
    depth = path.count("/")
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return False
    return True


def check_name(name: str) -> str:
    """What is wrong with a name for a data set; empty where nothing is."""
    plain = all(c.isalnum() and c.isascii() or c in "._-" for c in name)
    if not name or not plain or name[0] in "-." or len(name) > 100:
        return "a data set's name has letters, digits, '.', '_' and '-', and starts with a letter"
    return f"the name {name!r} is reserved" if name in RESERVED_NAMES else ""


class Octal(Dict[str, str]):
    """Decimal text → octal text, worked out once each: there are few modes."""

    def __missing__(self, text: str) -> str:
        self[text] = f"{int(text):o}"
        return self[text]


class Checker:
    """Counts and hashes entries as they pass, and holds them to the rules of a manifest."""

    def __init__(self) -> None:
        self.files = self.folders = self.links = self.bytes = 0
        self.packs: set[str] = set()  # that contents lie in
        self._digest = hashlib.sha256()
        self._before = ""
        self._links: set[str] = set()  # each link's path and a slash: nothing may lie under it
        self._octal = Octal()

    def add(self, entry: Entry) -> None:
        """ValueError where the order is wrong, a path appears twice or lies under a link."""
        key = key_of(entry)
        if key <= self._before:
            raise ValueError(f"a manifest out of order at {entry.path!r}")
        if self._links and self._is_under_link(key):
            raise ValueError(f"a path under a link: {entry.path!r}")
        self._before = key
        self._count(entry)
        text = (
            f"{entry.path}\0{entry.type}\0{entry.mode:o}\0{entry.size}\0{entry.sha256}\n"
            if entry.type != FOLDER
            else f"{entry.path}\0{FOLDER}\0{entry.mode:o}\n"
        )
        self._digest.update(text.encode("utf-8", "surrogateescape"))

    def add_lines(self, lines: list[str]) -> None:
        """As `add` of the entry of each line, but usual ones are looked at together."""
        found = USUAL.findall("".join(lines))
        if len(found) != len(lines) or not self._add_usual(found):
            for line in lines:
                self.add(entry_of(line))

    def _add_usual(self, found: list[tuple[str, ...]]) -> bool:
        """False, and nothing is added, where each has to be looked at by itself."""
        paths = [unquoted(each[0]) for each in found]
        joined = "\n" + "\n".join(paths) + "\n"
        if any(part in joined for part in MAY_BE_UNSAFE) and not all(map(is_safe, paths)):
            return False
        keys = [path + "/" if each[7] else path for path, each in zip(paths, found)]
        if keys[0] <= self._before or not all(map(lt, keys, keys[1:])):
            return False
        if self._links and any(map(self._is_under_link, keys)):
            return False
        octal, sizes = self._octal, [int(each[2]) for each in found if each[4]]
        self._before = keys[-1]
        self.files += len(sizes)
        self.folders += len(found) - len(sizes)
        self.bytes += sum(sizes)
        self.packs.update({each[5] for each in found} - {""})
        self._digest.update(
            "".join(
                [
                    f"{key}\0file\0{octal[mode]}\0{size}\0{sha256}\n"
                    if sha256
                    else f"{key[:-1]}\0folder\0{octal[folder]}\n"
                    for key, (_, mode, size, _, sha256, _, _, folder) in zip(keys, found)
                ]
            ).encode("utf-8", "surrogateescape")
        )
        return True

    def _is_under_link(self, key: str) -> bool:
        at = key.find("/")
        while at >= 0:
            if key[: at + 1] in self._links:
                return True
            at = key.find("/", at + 1)
        return False

    def _count(self, entry: Entry) -> None:
        if entry.type == FOLDER:
            self.folders += 1
        elif entry.type == LINK:
            self.links += 1
            self._links.add(entry.path + "/")
            if not link_stays_inside(entry.path, entry.target):
                raise ValueError(f"a link that leaves the set: {entry.path!r}")
        else:
            self.files += 1
            self.bytes += entry.size
            self.packs.update({entry.pack} - {""})

    def version(self) -> str:
        """The ID: SHA-256 over (path, type, mode, size, sha256) of all entries; mtime left out."""
        return self._digest.hexdigest()

    def header(self, created: float, zip_names: str = "") -> Header:
        return Header(self.files, self.folders, self.links, self.bytes, created, zip_names)


def side_by_side(old: Iterable[Any], new: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Two sorted streams as pairs of equal key; None where one side has no such entry."""
    left, right = iter(old), iter(new)
    a, b = next(left, None), next(right, None)
    key_a, key_b = _key_or_end(a), _key_or_end(b)
    while a is not None or b is not None:
        if key_a < key_b:
            yield a, None
            a = next(left, None)
            key_a = _key_or_end(a)
        elif key_b < key_a:
            yield None, b
            b = next(right, None)
            key_b = _key_or_end(b)
        else:
            yield a, b
            a, b = next(left, None), next(right, None)
            key_a, key_b = _key_or_end(a), _key_or_end(b)


def _key_or_end(entry: Any) -> str:
    return key_of(entry) if entry is not None else AFTER_ALL


Change = Tuple[str, Optional[Entry]]  # a key, and its entry from now on; None where it goes


Spliced = Union[List[str], Tuple[Optional[Entry], Optional[Entry]]]


def spliced(base: Iterable[list[str]], changes: Iterable[Change]) -> Iterator[Spliced]:
    """A manifest's lines with changes, both sorted by key.

    Gives runs of lines that stay, as they are, and for each change the entry before and after.
    """
    fresh, end = iter(changes), (AFTER_ALL, None)
    key, new = next(fresh, end)
    for lines in base:
        begin = 0
        while begin < len(lines):
            at = first_from(lines, begin, key)
            if at > begin:
                yield lines[begin:at]
            begin = at
            if at == len(lines):
                break
            if key_of_line(lines[at]) == key:
                yield entry_of(lines[at]), new
                begin += 1
            elif new is not None:
                yield None, new
            key, new = next(fresh, end)
    while key != AFTER_ALL:
        if new is not None:
            yield None, new
        key, new = next(fresh, end)


def only_new(before: Iterator[str], lines: Iterable[str]) -> Iterator[str]:
    """Those of a manifest's lines that another one, `before`, does not have as they are."""
    old = next(before, "")
    for line in lines:
        if line != old:
            key = key_of_line(line)
            while old and key_of_line(old) < key:
                old = next(before, "")
        if line == old:
            old = next(before, "")
        else:
            yield line


def first_from(lines: list[str], begin: int, key: str) -> int:
    """Index of the first line from `begin` on that does not sort before `key`.

    In steps that double, as the next change is near where there are many.
    """
    low, high, step = begin, begin, 1
    while high < len(lines) and key_of_line(lines[high]) < key:
        low, high, step = high + 1, high + step, step * 2
    high = min(high, len(lines))
    while low < high:
        middle = (low + high) // 2
        if key_of_line(lines[middle]) < key:
            low = middle + 1
        else:
            high = middle
    return low


def change_of(line: str) -> Change:
    """Of a line `-KEY` (as JSON text) or `+LINE`; ValueError where it is neither."""
    if line[0] == "-":
        return str(json.loads(line[1:])), None
    entry = entry_of(line[1:])
    return key_of(entry), entry


def line_of_members(pack: str, count: int) -> str:
    """Instead of the lines of so many files: they are the next ones of a pack that the box has just
    taken, and made its own lines of."""
    return f"*{pack} {count}\n"


def line_of_change(key: str, entry: Entry | None) -> str:
    return "-" + quoted(key) + "\n" if entry is None else "+" + line_of(entry)
