"""Receives parts of a data set as frames: resumable, hashed as they arrive, made current at the end.

stdin after the request, each frame 4 bytes of big-endian length and then so many bytes:
    {"part": KEY, "size": N, "offset": K}, data …, empty frame, {"sha256": HEX} or {"drop": true}
    {"pack": KEY, "size": N, "offset": K}, (heads, contents) …, and the same end: heads are lines
        as in packing.py, and both sides make the same tar of them
    {"commit": ID, "header": {…}}
A length of 0xFFFFFFFF is a sign of life with nothing behind it; where the highest bit is set, the
frame is zlib data; where the next one is, it is lines of changes against the base, sorted over all
such frames, each after the part that it needs. `*SHA256 COUNT` stands for the lines of the next COUNT
files of a pack that has come by this stream from its beginning. The end of the stream ends it.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import os
import sys
from typing import Any, BinaryIO, Iterator

from .activity import active
from .beside import Drafter, Syncer
from .commit import Draft, roll_forward
from .frames import Frames, out_of_step
from .keeping import tidy
from .locks import locked
from .manifest import Entry, Header
from .packing import END, Inventory, tar_of
from .places import Places, find_places
from .refusal import Refusal
from .shelf import Shelf, current, find_shelf, make_shelf
from .unpack import write_all

SYNC_EVERY = 64 << 20  # bytes of a part: a disk that is written to all the while is soon done


def receive(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """`name`, `group`, `who`, and `base`, the ID that changes are against, or "".

    Answers the ID that is current now, or "" where nothing was committed. With `beside` it only
    takes parts, for another `receive` that has said that it is ready and will commit them.
    """
    threads_take_turns()
    places = find_places(request)
    shelf = find_shelf(places, request["name"], request.get("group", ""))
    try:
        with active("receive " + shelf.name):
            if request.get("beside"):
                Receiver(shelf, None, Frames(wire.input, ""), wire).run()
                done = ""
            else:
                done = receive_alone(request, wire, places, shelf)
    except OSError as no:
        raise out_of_room(no, places.data) from no
    return {"id": done, "current": current(shelf).get("id", "")}


def threads_take_turns() -> None:
    """By default the thread that receives would wait 5 ms for the one that writes the manifest, at
    every frame; and the garbage collector looks for circles where there are none."""
    sys.setswitchinterval(0.0002)
    gc.disable()


def receive_alone(request: dict[str, Any], wire: Any, places: Places, shelf: Shelf) -> str:
    """With the set's lock held."""
    make_shelf(shelf)
    lock = shelf.at("lock")

    def tell(owner: dict[str, Any]) -> None:
        wire.event(waiting=owner)

    with locked(lock, "upload", request.get("who", ""), 90, tell):
        roll_forward(shelf)
        drafter = Drafter(Draft(shelf, request["base"]))
        wire.event(ready=True)
        done = Receiver(shelf, drafter, Frames(wire.input, lock, drafter.take), wire).run()
        if done:
            tidy(places, shelf, wire.event)
    return done


def out_of_room(no: OSError, place: str) -> Exception:
    """A full file system as NoSpace that names it; any other error as it is."""
    if no.errno not in (errno.ENOSPC, errno.EDQUOT):
        return no
    room = os.statvfs(place)
    what = "inodes" if room.f_favail == 0 and room.f_files else "space"
    if no.errno == errno.EDQUOT:
        what = "quota"
    return Refusal(
        "NoSpace",
        f"{place}: no {what} left on that file system",
        "free some (`fab data` shows old versions), then the same command goes on",
    )


class Receiver:
    """One upload: writes parts, has them synced beside, commits at the end."""

    def __init__(self, shelf: Shelf, drafter: Drafter | None, frames: Frames, wire: Any) -> None:
        self.shelf, self.drafter, self.frames, self.wire = shelf, drafter, frames, wire
        self.syncer = Syncer()

    def run(self) -> str:
        done = ""
        try:
            for order in self._orders():
                if "part" in order or "pack" in order:
                    self._part(order)
                elif "commit" in order and self.drafter:
                    done = self._commit(order, self.drafter)
        except EOFError:
            pass  # the laptop went away: what is whole stays, what is half is gone on with
        finally:
            if self.drafter:
                self.drafter.draft.drop()
            self.syncer.finish()
        return done

    def _orders(self) -> Iterator[dict[str, Any]]:
        while True:
            frame = self.frames.next()
            if frame is None:
                return
            yield dict(json.loads(frame))

    def _part(self, order: dict[str, Any]) -> None:
        key, offset = check_part(order)
        path = self.shelf.at("incoming", key)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        file = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
        try:
            self.shelf.give(file.fileno())
            digest = self._resume(file, offset)
            unsynced, inventory = 0, Inventory() if offset == 0 and self.drafter else None
            for block in self._tar_blocks(inventory) if "pack" in order else self.frames.data():
                digest.update(block)
                write_all(file.fileno(), block)
                unsynced += len(block)
                if unsynced >= SYNC_EVERY:
                    self.syncer.begin(file)
                    unsynced = 0
            trailer = self.frames.next()
        except OSError as no:
            file.close()
            if no.errno in (errno.ENOSPC, errno.EDQUOT):
                os.unlink(path)
            raise
        if trailer is None:
            file.close()
            raise EOFError
        members = inventory.entries if inventory else []
        self._settle(file, path, digest.hexdigest(), json.loads(trailer), members)

    def _tar_blocks(self, inventory: Inventory | None) -> Iterator[bytes]:
        """A pack as it travels, made a tar again."""
        for heads in self.frames.data():
            contents = self.frames.next()
            if contents is None:
                raise EOFError
            try:
                block = tar_of(heads, contents, inventory)
            except ValueError:
                raise out_of_step() from None
            yield block
        yield END

    def _resume(self, file: BinaryIO, offset: int) -> Any:
        """The hash over the first `offset` bytes; what lies behind them is cut off."""
        digest = hashlib.sha256()
        left = offset
        while left:
            block = file.read(min(left, 1 << 20))
            if not block:
                break
            digest.update(block)
            left -= len(block)
        file.seek(offset)  # where the part is shorter than that, its hash will be wrong
        file.truncate(offset)
        return digest

    def _settle(
        self,
        file: BinaryIO,
        path: str,
        sha256: str,
        trailer: dict[str, Any],
        members: list[Entry],
    ) -> None:
        key = os.path.basename(path)
        if trailer.get("sha256") == sha256:
            final = path + "=" + sha256
            if self.drafter:
                size = os.fstat(file.fileno()).st_size
                self.drafter.draft.arrived.part(sha256, final, size, members)
            self.syncer.add(file, path, final)
            return
        file.close()
        os.unlink(path)
        if not trailer.get("drop"):
            self.wire.event(damaged=key)

    def _commit(self, order: dict[str, Any], drafter: Drafter) -> str:
        self.syncer.finish()
        drafter.finish().publish(order["commit"], Header(**order["header"]))
        roll_forward(self.shelf)
        return str(order["commit"])


def check_part(order: dict[str, Any]) -> tuple[str, int]:
    """Key and offset of an order; nothing but 64 hexadecimal digits becomes a file's name."""
    key = order.get("part") or order.get("pack")
    size, offset = int(order["size"]), int(order["offset"])
    good = isinstance(key, str) and len(key) == 64 and not set(key) - set("0123456789abcdef")
    if not good or not 0 <= offset <= size:
        raise Refusal("TransferError", "an order that makes no sense", "upgrade the kit")
    return str(key), offset
