"""Receives parts of a data set as frames: resumable, hashed as they arrive, made current at the end.

stdin after the request, each frame 4 bytes of big-endian length and then so many bytes:
    {"part": KEY, "size": N, "offset": K}, data …, empty frame, {"sha256": HEX} or {"drop": true}
    {"commit": ID, "base": ID or "", "header": {…}}, zlib data (lines of changes) …, empty frame
A length of 0xFFFFFFFF is a sign of life with nothing behind it. The end of the stream ends it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import queue
import shutil
import struct
import threading
import time
import zlib
from typing import Any, BinaryIO, Iterator

from .activity import active
from .commit import prepare, roll_forward
from .keeping import tidy
from .locks import locked
from .places import find_places
from .refusal import Refusal
from .shelf import Shelf, current, find_shelf, make_shelf
from .unpack import write_all

LIFE = 0xFFFFFFFF
LARGEST = 16 << 20  # of one frame
SILENCE = 60.0  # s without a frame after which the laptop is taken for gone


def receive(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """`name`, `group`, `who`; answers the ID that is current now, or "" where nothing was committed."""
    places = find_places(request)
    shelf = find_shelf(places, request["name"], request.get("group", ""))
    make_shelf(shelf)
    lock = shelf.at("lock")

    def tell(owner: dict[str, Any]) -> None:
        wire.event(waiting=owner)

    with active("receive " + shelf.name), locked(lock, "upload", request.get("who", ""), 90, tell):
        roll_forward(shelf)
        frames = Frames(wire.input, lock)
        try:
            done = Receiver(shelf, frames, wire).run()
            if done:
                tidy(places, shelf, wire.event)
        except OSError as no:
            raise out_of_room(no, places.data) from no
    return {"id": done, "current": current(shelf).get("id", "")}


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


class Frames:
    """The laptop's frames; the process ends itself when they stop coming without an end."""

    def __init__(self, stream: BinaryIO, lock: str) -> None:
        self._stream = stream
        self._lock = lock
        self._heard = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while time.monotonic() - self._heard < SILENCE:
            time.sleep(1)
        shutil.rmtree(self._lock, ignore_errors=True)
        os._exit(3)

    def busy(self) -> None:
        """Called where we ourselves work for long: the laptop is not to be blamed for that."""
        self._heard = time.monotonic()

    def next(self) -> bytes | None:
        """One frame; None at the end of the stream. A frame that broke off counts as the end."""
        while True:
            head = self._stream.read(4)
            self._heard = time.monotonic()
            if len(head) < 4:
                return None
            length = struct.unpack(">I", head)[0]
            if length == LIFE:
                continue
            if length > LARGEST:
                raise Refusal("TransferError", "the stream is out of step", "try again")
            data = self._stream.read(length) if length else b""
            self._heard = time.monotonic()
            return data if len(data) == length else None

    def data(self) -> Iterator[bytes]:
        """Frames up to an empty one; EOFError where they break off before."""
        while True:
            frame = self.next()
            if frame is None:
                raise EOFError
            if not frame:
                return
            yield frame


class Receiver:
    """One upload: writes parts, has them synced beside, commits at the end."""

    def __init__(self, shelf: Shelf, frames: Frames, wire: Any) -> None:
        self.shelf, self.frames, self.wire = shelf, frames, wire
        self.syncer = Syncer(wire)
        self.written = 0
        self._told = 0.0

    def run(self) -> str:
        done = ""
        try:
            for order in self._orders():
                if "part" in order:
                    self._part(order)
                elif "commit" in order:
                    done = self._commit(order)
        except EOFError:
            pass  # the laptop went away: what is whole stays, what is half is gone on with
        finally:
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
            for block in self.frames.data():
                digest.update(block)
                write_all(file.fileno(), block)
                self._tell(len(block))
            trailer = self.frames.next()
        except OSError as no:
            file.close()
            if no.errno in (errno.ENOSPC, errno.EDQUOT):
                os.unlink(path)
            raise
        if trailer is None:
            file.close()
            raise EOFError
        self._settle(file, path, digest.hexdigest(), json.loads(trailer))

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
            self.frames.busy()
        file.seek(offset)  # where the part is shorter than that, its hash will be wrong
        file.truncate(offset)
        return digest

    def _settle(self, file: BinaryIO, path: str, sha256: str, trailer: dict[str, Any]) -> None:
        key = os.path.basename(path)
        if trailer.get("sha256") == sha256:
            self.syncer.add(file, path, path + "=" + sha256)
            return
        file.close()
        os.unlink(path)
        if not trailer.get("drop"):
            self.wire.event(damaged=key)

    def _tell(self, count: int) -> None:
        self.written += count
        now = time.monotonic()
        if now - self._told > 0.25:
            self._told = now
            self.wire.event(received=self.written)

    def _commit(self, order: dict[str, Any]) -> str:
        self.syncer.finish()
        spool = self.shelf.at("incoming", "changes")
        with open(spool, "wb") as file:
            unsqueeze = zlib.decompressobj()
            for block in self.frames.data():
                file.write(unsqueeze.decompress(block))
            file.write(unsqueeze.flush())
        self.frames.busy()
        with open(spool, encoding="ascii") as changes:
            with self._patience():
                prepare(self.shelf, order, changes)
                roll_forward(self.shelf)
        return str(order["commit"])

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """While we commit, the laptop only waits: its silence means nothing."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(5):
                self.frames.busy()

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield
        finally:
            stop.set()


class Syncer:
    """Syncs whole parts to the disk and names them whole, while the next ones arrive."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self._parts: queue.Queue[tuple[BinaryIO, str, str] | None] = queue.Queue(8)
        self._faults: list[BaseException] = []
        self._thread: threading.Thread | None = None

    def add(self, file: BinaryIO, path: str, final: str) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._parts.put((file, path, final))

    def _work(self) -> None:
        for file, path, final in iter(self._parts.get, None):
            try:
                with file:
                    os.fsync(file.fileno())
                os.rename(path, final)
                self._wire.event(have=os.path.basename(path))
            except BaseException as fault:
                self._faults.append(fault)

    def finish(self) -> None:
        """Wait until all is synced; the first error is raised here."""
        if self._thread is not None:
            self._parts.put(None)
            self._thread.join()
            self._thread = None
        if self._faults:
            raise self._faults[0]


def check_part(order: dict[str, Any]) -> tuple[str, int]:
    """Key and offset of an order; nothing but 64 hexadecimal digits becomes a file's name."""
    key, size, offset = order["part"], int(order["size"]), int(order["offset"])
    good = isinstance(key, str) and len(key) == 64 and not set(key) - set("0123456789abcdef")
    if not good or not 0 <= offset <= size:
        raise Refusal("TransferError", "an order that makes no sense", "upgrade the kit")
    return key, offset
