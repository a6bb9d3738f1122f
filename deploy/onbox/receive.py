"""Receives parts of a data set as frames: resumable, hashed as they arrive, made current at the end.

stdin after the request, each frame 4 bytes of big-endian length and then so many bytes:
    {"part": KEY, "size": N, "offset": K}, data …, empty frame, {"sha256": HEX} or {"drop": true}
    {"pack": KEY, "size": N, "offset": K}, (heads, contents) …, and the same end: heads are lines
        as in packing.py, and both sides make the same tar of them
    {"changes": true}, lines of changes against the base …, empty frame; sorted over all of these
    {"commit": ID, "header": {…}}
A length of 0xFFFFFFFF is a sign of life with nothing behind it; where the highest bit is set,
the frame is zlib data. The end of the stream ends it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
from .commit import Draft, roll_forward
from .keeping import tidy
from .locks import locked
from .manifest import Header
from .packing import END, tar_of
from .places import find_places
from .refusal import Refusal
from .shelf import Shelf, current, find_shelf, make_shelf
from .unpack import write_all
from .wire import LIFE, ZLIB

F_SETPIPE_SZ = 1031  # Linux; in the module `fcntl` from Python 3.10 on
LARGEST = 16 << 20  # of one frame
SYNC_EVERY = 64 << 20  # bytes of a part: a disk that is written to all the while is soon done
SILENCE = 60.0  # s without a frame after which the laptop is taken for gone


def receive(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """`name`, `group`, `who`, and `base`, the ID that changes are against, or "".

    Answers the ID that is current now, or "" where nothing was committed.
    """
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
            done = Receiver(shelf, request["base"], frames, wire).run()
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
        with contextlib.suppress(OSError):  # no pipe, or the user's share of wide ones is used up
            fcntl.fcntl(stream.fileno(), F_SETPIPE_SZ, 1 << 20)
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
            squeezed, length = length & ZLIB, length & ~ZLIB
            if length > LARGEST:
                raise out_of_step()
            data = self._stream.read(length) if length else b""
            self._heard = time.monotonic()
            if len(data) < length:
                return None
            return unsqueezed(data) if squeezed else data

    def data(self) -> Iterator[bytes]:
        """Frames up to an empty one; EOFError where they break off before."""
        while True:
            frame = self.next()
            if frame is None:
                raise EOFError
            if not frame:
                return
            yield frame


def unsqueezed(data: bytes) -> bytes:
    """The content of a zlib frame, which is no longer than a plain one may be."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, LARGEST)
    except zlib.error:
        raise out_of_step() from None
    if not stream.eof:
        raise out_of_step()
    return plain


def out_of_step() -> Refusal:
    return Refusal("TransferError", "the stream is out of step", "try again")


class Receiver:
    """One upload: writes parts, has them synced beside, commits at the end."""

    def __init__(self, shelf: Shelf, base: str, frames: Frames, wire: Any) -> None:
        self.shelf, self.frames, self.wire = shelf, frames, wire
        self.syncer = Syncer()
        self.drafter = Drafter(Draft(shelf, base))

    def run(self) -> str:
        done = ""
        try:
            for order in self._orders():
                if "part" in order or "pack" in order:
                    self._part(order)
                elif "changes" in order:
                    self._changes()
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
            unsynced = 0
            for block in self._tar_blocks() if "pack" in order else self.frames.data():
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
        self._settle(file, path, digest.hexdigest(), json.loads(trailer))

    def _tar_blocks(self) -> Iterator[bytes]:
        """A pack as it travels, made a tar again."""
        for heads in self.frames.data():
            contents = self.frames.next()
            if contents is None:
                raise EOFError
            try:
                block = tar_of(heads, contents)
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
            self.frames.busy()
        file.seek(offset)  # where the part is shorter than that, its hash will be wrong
        file.truncate(offset)
        return digest

    def _settle(self, file: BinaryIO, path: str, sha256: str, trailer: dict[str, Any]) -> None:
        key = os.path.basename(path)
        if trailer.get("sha256") == sha256:
            final = path + "=" + sha256
            self.drafter.draft.arrived.part(sha256, final, os.fstat(file.fileno()).st_size)
            self.syncer.add(file, path, final)
            return
        file.close()
        os.unlink(path)
        if not trailer.get("drop"):
            self.wire.event(damaged=key)

    def _changes(self) -> None:
        for lines in self.frames.data():
            self.drafter.take(lines)

    def _commit(self, order: dict[str, Any]) -> str:
        self.frames.busy()
        with self._patience():
            self.syncer.finish()
            self.drafter.finish().publish(order["commit"], Header(**order["header"]))
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


class Drafter:
    """Writes the draft in a thread beside: at the end of a long upload the manifest is there too."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._lines: queue.Queue[bytes | None] = queue.Queue(8)
        self._faults: list[BaseException] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def take(self, lines: bytes) -> None:
        """Some whole lines of changes."""
        self._lines.put(lines)

    def finish(self) -> Draft:
        """The draft with all changes in it; what went wrong is raised here."""
        self._lines.put(None)
        self._thread.join()
        if self._faults:
            raise self._faults[0]
        return self.draft

    def _work(self) -> None:
        try:
            self.draft.write(self._changes())
        except BaseException as fault:
            self._faults.append(fault)
            for _ in iter(self._lines.get, None):
                pass  # the one that gives them must not wait for ever

    def _changes(self) -> Iterator[str]:
        for lines in iter(self._lines.get, None):
            yield from lines.decode("ascii").splitlines(True)


class Syncer:
    """Syncs parts to the disk and names them whole, while the next ones arrive."""

    def __init__(self) -> None:
        self._parts: queue.Queue[tuple[int, str, str] | None] = queue.Queue(8)
        self._faults: list[BaseException] = []
        self._thread: threading.Thread | None = None

    def add(self, file: BinaryIO, path: str, final: str) -> None:
        """A whole part: sync it, and rename it then."""
        with file:
            self._put(file, path, final)

    def begin(self, file: BinaryIO) -> None:
        """Sync what has been written by now."""
        self._put(file, "", "")

    def _put(self, file: BinaryIO, path: str, final: str) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._parts.put((os.dup(file.fileno()), path, final))

    def _work(self) -> None:
        for fd, path, final in iter(self._parts.get, None):
            try:
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
                if final:
                    os.rename(path, final)
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
    key = order.get("part") or order.get("pack")
    size, offset = int(order["size"]), int(order["offset"])
    good = isinstance(key, str) and len(key) == 64 and not set(key) - set("0123456789abcdef")
    if not good or not 0 <= offset <= size:
        raise Refusal("TransferError", "an order that makes no sense", "upgrade the kit")
    return str(key), offset
