"""Which versions of a data set stay on /data: listed, pinned, removed; packs without a version go."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, Callable, Iterable, NamedTuple

from .commit import roll_forward
from .locks import locked
from .manifest import check_name
from .places import Places, find_places
from .publish import read_json, write_json
from .refusal import Refusal
from .repack import repack
from .room import in_use, is_used
from .shelf import (
    Shelf,
    current,
    find_shelf,
    find_version,
    incoming,
    lines_of_all,
    open_manifest,
    versions,
)
from .slices import not_packed, packs_in

KEPT = 3  # the newest ones stay, beside pinned ones and those that runs use


class Version(NamedTuple):
    """What decides over a version; `age` counts from the newest, 0."""

    id: str
    age: int
    current: bool
    pinned: bool
    used: bool


def superfluous(found: Iterable[Version], keep: int = KEPT) -> list[tuple[str, str]]:
    """PURE: (ID, reason) of the versions that leave by themselves after an upload."""
    return [
        (each.id, f"older than the newest {keep}, not pinned, used by no run")
        for each in found
        if not (each.current or each.pinned or each.used) and each.age >= keep
    ]


def describe(places: Places, shelf: Shelf) -> list[Version]:
    pins, used = pinned(shelf), in_use(places)
    newest = current(shelf).get("id", "")
    return [
        Version(id, age, id == newest, id in pins, is_used(f"{shelf.name}@{id}", used))
        for age, id in enumerate(versions(shelf))
    ]


def pinned(shelf: Shelf) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return list(read_json(shelf.at("pins"))["pins"])
    return []


def list_sets(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Every set on /data with its versions; folders that someone else put there by name."""
    places = find_places(request)
    sets, foreign = [], []
    for name in sorted(os.listdir(places.data)):
        root = os.path.join(places.data, name)
        if check_name(name) or not os.path.isdir(root) or os.path.islink(root):
            continue
        shelf = find_shelf(places, name)
        if os.path.isdir(shelf.own):
            sets.append(_set(places, shelf))
        else:
            foreign.append(name)
    return {"data": places.data, "sets": sets, "foreign": foreign}


def _set(places: Places, shelf: Shelf) -> dict[str, Any]:
    found = []
    for each in describe(places, shelf):
        with open_manifest(shelf, each.id) as (header, _):
            found.append({**each._asdict(), **header._asdict()})
    half = sum(size for size, _ in incoming(shelf).values())
    return {"name": shelf.name, "versions": found, "incoming": half, "disk": disk_use(shelf.root)}


def disk_use(folder: str) -> int:
    """Bytes of disk below a folder."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
    return total


def pin(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """`name`, `version`, `pinned` (true or false)."""
    shelf = _present(find_places(request), request["name"])
    with locked(shelf.at("lock"), "pin", wait=60):
        version = find_version(shelf, request["version"])
        pins = set(pinned(shelf)) - {version} | ({version} if request["pinned"] else set())
        write_json(shelf.at("pins"), {"schema": 1, "pins": sorted(pins)}, shelf.file_mode)
    return {"name": shelf.name, "version": version, "pinned": bool(request["pinned"])}


def remove(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """`name`, and `version` or all of the set. Refusal where it is current, pinned or used by a run."""
    places = find_places(request)
    shelf = _present(places, request["name"])
    with locked(shelf.at("lock"), "remove", wait=60):
        roll_forward(shelf)
        found = describe(places, shelf)
        if request.get("version"):
            wanted = find_version(shelf, request["version"])
            chosen = [each for each in found if each.id == wanted]
            _must_be_free(shelf, chosen, whole=False)
        else:
            chosen = found
            _must_be_free(shelf, chosen, whole=True)
            return _remove_all(shelf, chosen)
        for each in chosen:
            os.unlink(shelf.version(each.id))
        return {"removed": [each.id for each in chosen], "freed": shrink(shelf)}


def _present(places: Places, name: str) -> Shelf:
    shelf = find_shelf(places, name)
    if not os.path.isdir(shelf.own):
        raise Refusal(
            "NoSuchRun", f"no data set {name!r} in {places.data}", "`fab data` lists them"
        )
    return shelf


def _must_be_free(shelf: Shelf, chosen: list[Version], whole: bool) -> None:
    for each in chosen:
        what = f"{shelf.name}: version {each.id[:12]}"
        if each.used:
            raise Refusal(
                "Busy", f"{what} is used by a run that may go on", "fab stop that run first"
            )
        if each.pinned:
            raise Refusal("UsageError", f"{what} is pinned", "fab data --unpin first")
        if each.current and not whole:
            raise Refusal(
                "UsageError", f"{what} is the current one", "remove the whole set instead"
            )


def _remove_all(shelf: Shelf, chosen: list[Version]) -> dict[str, Any]:
    freed = disk_use(shelf.root)
    grave = f"{shelf.root}.gone-{os.getpid()}"
    os.rename(shelf.root, grave)
    shutil.rmtree(grave)
    return {"removed": [each.id for each in chosen], "freed": freed}


def tidy(places: Places, shelf: Shelf, tell: Callable[..., None]) -> int:
    """After an upload: superfluous versions leave, then what no version needs. Bytes freed."""
    leaving = superfluous(describe(places, shelf))
    for id, reason in leaving:
        tell(note=f"version {id[:12]} leaves: {reason}")
        os.unlink(shelf.version(id))
    return shrink(shelf) if leaving else 0


def shrink(shelf: Shelf) -> int:
    """What no version needs leaves, and packs that are mostly that are written anew; bytes freed."""
    freed = sweep(shelf)
    saved = repack(shelf)
    if saved:
        sweep(shelf)
    return freed + saved


def sweep(shelf: Shelf) -> int:
    """Remove packs and old plain files that no version names; bytes freed."""
    packs: set[str] = set()
    plain: set[str] = set()
    for lines in lines_of_all(shelf):
        packs |= packs_in(lines)
        for entry in not_packed(lines):
            (packs if entry.pack else plain).add(entry.pack or entry.sha256)
    freed = 0
    for folder, needed in (("packs", packs), ("old", plain)):
        for name in os.listdir(shelf.at(folder)):
            if name.partition(".")[0] not in needed:
                path = shelf.at(folder, name)
                freed += os.lstat(path).st_blocks * 512 // os.lstat(path).st_nlink
                os.unlink(path)
    return freed
