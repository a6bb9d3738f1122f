"""One upload's stream to the box: parts and the commit as frames, the box's events as they come."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.link import SILENCE, Done
from deploy.errors import DataError, LinkLost
from deploy.onbox.wire import EVENT, find_answer

LIFE = struct.pack(">I", 0xFFFFFFFF)
EVERY = 5.0  # s between two signs of life
OnEvent = Callable[[dict[str, Any]], None]


class Session:
    """`receive` on the box, held open. LinkLost where it breaks or nothing is heard for 30 s."""

    def __init__(self, agent: Agent, on_event: OnEvent, **request: Any) -> None:
        self._agent, self._on_event = agent, on_event
        self._stream = agent.open("receive", **request)
        self._writing = threading.Lock()
        self._heard = self._wrote = time.monotonic()
        self._stdout: list[bytes] = []
        self._stderr: list[bytes] = []
        self._ended = threading.Event()
        self.sent = 0
        self.damaged: list[str] = []
        self._readers = [self._start(self._listen), self._start(self._collect)]
        self._start(self._live)

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def part(self, key: str, size: int, offset: int, blocks: Iterable[bytes]) -> str:
        """Send a part from `offset` on, and return the SHA-256 of the whole."""
        self._json({"part": key, "size": size, "offset": offset})
        digest, skip = hashlib.sha256(), offset
        try:
            for block in blocks:
                digest.update(block)
                if skip < len(block):
                    self._frame(block[skip:] if skip else block)
                skip = max(0, skip - len(block))
        except DataError:  # not to be sent like this; after anything else it goes on from here
            with contextlib.suppress(LinkLost):
                self._frame(b"")
                self._json({"drop": True})
            raise
        self._frame(b"")
        self._json({"sha256": digest.hexdigest()})
        return digest.hexdigest()

    def commit(self, order: dict[str, Any], changes: Path) -> dict[str, Any]:
        """Send the manifest's changes, end the stream, and return the box's answer."""
        self._json(order)
        squeeze = zlib.compressobj(1)
        with changes.open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                if squeezed := squeeze.compress(block):
                    self._frame(squeezed)
        self._frame(squeeze.flush())
        self._frame(b"")
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """What the box says at the end; its refusal is raised."""
        with contextlib.suppress(OSError, LinkLost), self._writing:
            self._stream.stdin.close()
        for reader in self._readers:
            reader.join()
        code = self._stream.wait()
        done = Done(code, b"".join(self._stdout), b"".join(self._stderr))
        if find_answer(done.stdout) is None:
            raise self._lost()
        return self._agent.answer("receive", done)

    def close(self) -> None:
        self._ended.set()
        self._stream.close()

    def _json(self, value: dict[str, Any]) -> None:
        self._frame(json.dumps(value).encode())

    def _frame(self, data: bytes) -> None:
        try:
            with self._writing:
                self._stream.stdin.write(struct.pack(">I", len(data)))
                self._stream.stdin.write(data)
                if len(data) < 1 << 16:
                    self._stream.stdin.flush()
        except (OSError, EOFError, ValueError) as no:
            raise self._why_it_broke() from no
        self._wrote = time.monotonic()
        self.sent += len(data)

    def _why_it_broke(self) -> Exception:
        """The box's own reason where it gave one before it went away."""
        for reader in self._readers:
            reader.join(5)
        try:
            self.answer()
        except Exception as reason:
            return reason
        return self._lost()

    def _lost(self) -> LinkLost:
        why = (self._stderr or [b""])[-1].decode(errors="replace").strip()
        what = "the connection broke" + (f" ({why[:200]})" if why else "")
        return LinkLost(f"{self._agent.link.name}: {what}", "the same command goes on where it was")

    def _listen(self) -> None:
        """The box's stderr: events, signs of life, and whatever else it prints."""
        with contextlib.suppress(OSError, ValueError):
            for line in iter(self._stream.stderr.readline, b""):
                self._heard = time.monotonic()
                if line.startswith(EVENT):
                    event = json.loads(line[len(EVENT) :])
                    if "damaged" in event:
                        self.damaged.append(event["damaged"])
                    self._on_event(event)
                else:
                    self._stderr.append(line)

    def _collect(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in iter(self._stream.stdout.readline, b""):
                self._stdout.append(line)

    def _live(self) -> None:
        """Signs of life to the box; a box that gives none any more is given up."""
        while not self._ended.wait(1):
            now = time.monotonic()
            if now - self._heard > SILENCE:
                self._stream.close()
                return
            if now - self._wrote > EVERY and self._writing.acquire(blocking=False):
                try:
                    self._stream.stdin.write(LIFE)
                    self._stream.stdin.flush()
                    self._wrote = now
                except (OSError, EOFError, ValueError):
                    return
                finally:
                    self._writing.release()


@contextlib.contextmanager
def session(agent: Agent, on_event: OnEvent, **request: Any) -> Iterator[Session]:
    """A Session that is closed when the block ends, however it ends."""
    opened = Session(agent, on_event, **request)
    try:
        yield opened
    finally:
        opened.close()
