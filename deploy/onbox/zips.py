"""Reads a zip as members, with their names as their makers meant them."""

from __future__ import annotations

import os
import stat
import time
import zipfile
from typing import IO, Callable, Generator, Sequence

from .manifest import FILE, FOLDER, LINK
from .member import OTHER, Member

UTF8_FLAG, LOCKED = 0x800, 0x1
DOS = 0  # create_system of archives whose paths may have backslashes


def zip_members(path: str, zip_names: str) -> Generator[Member, None, None]:
    """The members of a zip; `zip_names` is the encoding of names that don't say theirs, or ""."""
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        for info, name in zip(infos, names_of(infos, zip_names)):
            if info.flag_bits & LOCKED:
                raise RuntimeError(f"{name!r} needs a password")
            mode = info.external_attr >> 16
            kind = FOLDER if name.endswith("/") else FILE
            target = ""
            if stat.S_ISLNK(mode):
                kind, target = LINK, os.fsdecode(archive.read(info))
            elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                kind = OTHER
            usual = 0o700 if kind == FOLDER else 0o600
            mode, moment = mode & 0o777 or usual, _zip_time(info)
            content = _opener(archive, info)
            yield Member(name, kind, mode, moment, target, content, info.file_size)


def _opener(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
    return lambda: archive.open(info)


def _zip_time(info: zipfile.ZipInfo) -> int:
    try:
        return int(time.mktime((*info.date_time, 0, 0, -1)))
    except (ValueError, OverflowError):
        return 0


def names_of(infos: Sequence[zipfile.ZipInfo], encoding: str = "") -> list[str]:
    """The members' paths with "/" between their parts; `encoding` for those without the UTF-8 flag."""
    raw = {i: _raw(info) for i, info in enumerate(infos) if not info.flag_bits & UTF8_FLAG}
    encoding = encoding or guess(list(raw.values()))
    names = []
    for i, info in enumerate(infos):
        name = info.filename
        if i in raw and not raw[i].isascii():
            name = raw[i].decode(encoding, "surrogateescape")
        if info.create_system == DOS:
            name = name.replace("\\", "/")
        names.append(name)
    return names


def _raw(info: zipfile.ZipInfo) -> bytes:
    """The name's bytes as they stand in the archive (zipfile has decoded them as cp437)."""
    return info.orig_filename.encode("cp437")


def guess(names: Sequence[bytes]) -> str:
    """The encoding of names that don't say theirs: UTF-8, GB18030 (Windows in China), else cp437.

    All names are tried together. GB18030 counts only where what comes out is CJK: almost
    any bytes can be read as it.
    """
    odd = [name for name in names if not name.isascii()]
    if not odd:
        return "ascii"
    for encoding, plausible in (("utf-8", _any_text), ("gb18030", _is_chinese)):
        try:
            if all(plausible(name.decode(encoding)) for name in odd):
                return encoding
        except UnicodeDecodeError:
            continue
    return "cp437"


def _any_text(text: str) -> bool:
    return True


def _is_chinese(text: str) -> bool:
    """Every character beyond ASCII is a common ideograph, or CJK punctuation, or full width."""
    odd = [c for c in text if ord(c) > 127]
    blocks = ((0x4E00, 0x9FFF), (0x3000, 0x303F), (0xFF00, 0xFFEF), (0x2010, 0x2027))
    return all(any(low <= ord(c) <= high for low, high in blocks) for c in odd)
