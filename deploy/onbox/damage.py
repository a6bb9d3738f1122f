"""Finds what on /data no longer has its checksum, and notes it, so that the next upload mends it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any

from .manifest import ARCHIVE, FILE, Entry
from .places import find_places
from .publish import read_json, write_json
from .reading import CHUNK, Range, read_ahead
from .shelf import Shelf, find_shelf, find_version, open_manifest


def check(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Read a version of `name` on /data wholly; answers the checksums of packs and files that are damaged."""
    shelf = find_shelf(find_places(request), request["name"])
    version = find_version(shelf, request.get("version") or "current")
    return {"version": version, "damaged": note_damage(shelf, version, wire.event)}


def note_damage(shelf: Shelf, version: str, tell: Any) -> list[str]:
    """Checksums of the damaged packs and plain files of a version; kept for `state` to report."""
    packs: dict[str, None] = {}
    plain: list[Entry] = []
    with open_manifest(shelf, version) as (_, entries):
        for entry in entries:
            if entry.pack:
                packs[entry.pack] = None
            elif entry.type in (FILE, ARCHIVE):
                plain.append(entry)
    wrong = []
    for at, sha256 in enumerate(packs):
        tell(checked=at, total=len(packs) + len(plain))
        if content_of(shelf.pack(sha256)) != sha256:
            wrong.append(sha256)
    for entry in plain:
        places = (os.path.join(shelf.root, entry.path), shelf.at("old", entry.sha256))
        if not any(content_of(each) == entry.sha256 for each in places):
            wrong.append(entry.sha256)
    if wrong and os.access(shelf.own, os.W_OK):
        write_json(shelf.at("damaged"), {"schema": 1, "damaged": wrong}, shelf.file_mode)
    return wrong


def content_of(path: str) -> str:
    """The SHA-256 of a file; "" where there is none."""
    try:
        size = os.lstat(path).st_size
    except OSError:
        return ""
    digest = hashlib.sha256()
    for block in read_ahead(Range(path, at, CHUNK) for at in range(0, size, CHUNK)):
        digest.update(block)
    return digest.hexdigest()


def noted(shelf: Shelf) -> list[str]:
    """What was found damaged and has not been mended since."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        return list(read_json(shelf.at("damaged"))["damaged"])
    return []


def mended(shelf: Shelf) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(shelf.at("damaged"))
