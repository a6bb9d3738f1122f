"""One upload's stream to the box: parts and the commit as frames, the box's events as they come."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.link import SILENCE, Done, Stream
from deploy.effects.parts import Batch, Pack
from deploy.effects.writer import Writer
from deploy.errors import DataError, LinkLost
from deploy.onbox.wire import CHANGES, EVENT, find_answer

PIECE = 1 << 20  # characters of changes in a frame
OnEvent = Callable[[dict[str, Any]], None]
OnBatch = Callable[[Batch], None]


class Session:
    """`receive` on the box, held open. LinkLost where it breaks or nothing is heard for 30 s."""

    def __init__(self, agent: Agent, stream: Stream, on_event: OnEvent, beside: bool) -> None:
        """`beside`: another one commits what this one brings."""
        self.commits = not beside
        self._agent, self._stream, self._on_event = agent, stream, on_event
        self._writer = Writer(stream.stdin)
        self._heard = time.monotonic()
        self._stdout: list[bytes] = []
        self._stderr: list[bytes] = []
        self._ended = threading.Event()
        self._ready = threading.Event()
        self.damaged: list[str] = []
        self._readers = [self._start(self._listen), self._start(self._collect)]
        self._start(self._watch)

    @property
    def sent(self) -> int:
        """Bytes that have gone over the line."""
        return self._writer.sent

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def part(self, key: str, size: int, offset: int, blocks: Iterable[bytes]) -> str:
        """Send a file from `offset` on, and return the SHA-256 of the whole."""
        self._json({"part": key, "size": size, "offset": offset})
        digest, skip = hashlib.sha256(), offset
        with self._dropped_if_it_changes():
            for block in blocks:
                digest.update(block)
                if skip < len(block):
                    self._frame(block[skip:] if skip else block)
                skip = max(0, skip - len(block))
        return self._end_part(digest.hexdigest())

    def pack(self, key: str, size: int, offset: int, pack: Pack, told: OnBatch) -> str:
        """Send a pack from `offset` on, where a batch begins; return the SHA-256 of the whole tar."""
        self._json({"pack": key, "size": size, "offset": offset})
        with self._dropped_if_it_changes():
            for batch in pack:
                if batch.heads:
                    self._frame(batch.heads, small=True)
                    self._frame(batch.contents)
                told(batch)
        return self._end_part(pack.sha256)

    @contextlib.contextmanager
    def _dropped_if_it_changes(self) -> Iterator[None]:
        """A part is not to be sent on like this; after anything else it goes on from there."""
        try:
            yield
        except DataError:
            with contextlib.suppress(LinkLost):
                self._frame(b"")
                self._json({"drop": True})
            raise

    def _end_part(self, sha256: str) -> str:
        self._frame(b"")
        self._json({"sha256": sha256})
        return sha256

    def wait_until_ready(self) -> None:
        """Until the box has the set to itself; its refusal is raised."""
        while not self._ready.wait(0.1):
            if not self._readers[0].is_alive():
                raise self._why_it_broke()

    def changes(self, lines: Iterable[str]) -> None:
        """Tell the box some of the manifest's changes, also while another thread sends a part."""
        for text in in_pieces(lines, PIECE):
            self._frame(text.encode("ascii"), small=True, mark=CHANGES)

    def commit(self, version: str, header: dict[str, Any]) -> None:
        """Have what was sent made the version of that ID; the answer says whether it was."""
        self._json({"commit": version, "header": header})

    def answer(self) -> dict[str, Any]:
        """End the stream, and what the box says then; its refusal is raised."""
        self._writer.end()
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

    def _frame(self, data: bytes, small: bool = False, mark: int = 0) -> None:
        try:
            self._writer.put(data, small, mark)
        except (OSError, EOFError, ValueError) as no:
            raise self._why_it_broke() from no

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
                    if "ready" in event:
                        self._ready.set()
                    if "damaged" in event:
                        self.damaged.append(event["damaged"])
                    self._on_event(event)
                else:
                    self._stderr.append(line)

    def _collect(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in iter(self._stream.stdout.readline, b""):
                self._stdout.append(line)

    def _watch(self) -> None:
        """A box that gives no sign of life any more is given up."""
        while not self._ended.wait(1):
            if time.monotonic() - self._heard > SILENCE:
                self._stream.close()
                return


def in_pieces(lines: Iterable[str], size: int) -> Iterator[str]:
    """The lines joined to texts of `size` characters and one line at most."""
    piece: list[str] = []
    length = 0
    for line in lines:
        piece.append(line)
        length += len(line)
        if length >= size:
            yield "".join(piece)
            piece, length = [], 0
    if piece:
        yield "".join(piece)


@contextlib.contextmanager
def session(agent: Agent, stream: Stream, on_event: OnEvent, **request: Any) -> Iterator[Session]:
    """A Session on a `receive` that has been begun; closed when the block ends, however it ends."""
    agent.ask(stream, **request)
    opened = Session(agent, stream, on_event, bool(request.get("beside")))
    try:
        yield opened
    finally:
        opened.close()
