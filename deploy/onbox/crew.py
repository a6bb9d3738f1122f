"""Does pieces of work in several processes at once: creating a file holds Python's lock for long.

The children are forked, so that they start in a few milliseconds and know what we know. They take
pieces from one pipe, so that nobody waits for the slowest, and each tells what it has done through
a pipe of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import traceback
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Tuple

from .refusal import Refusal

Piece = Tuple[int, int]
PIECE = struct.Struct("<QQ")
OUTSTANDING = 1024  # pieces given out and not yet done: no more than a pipe holds
MOST = 8  # processes: more of them only wait for the file system


class Hand(NamedTuple):
    """What one worker holds: `take` gives its next piece, None at the end."""

    take: Callable[[], Piece | None]
    parent: int  # process id, 0 where the work is done in the parent itself

    def check(self) -> None:
        """End this process where its parent is gone: another may be at the same work soon."""
        if self.parent and os.getppid() != self.parent:
            os._exit(1)


Work = Callable[[Hand], Iterator[Any]]  # yields what JSON can hold, once for each piece


def cores() -> int:
    """How many processes are worth having here."""
    return min(MOST, len(os.sched_getaffinity(0)))


def share_out(work: Work, pieces: Iterable[Piece], count: int) -> Iterator[Any]:
    """What `work` tells of the pieces, which may come as a stream, by `count` processes.

    What one of them raises is raised here. One process, or none to be had: done in our own.
    """
    crew = Crew(work) if count > 1 else None
    if crew is None or not crew.hire(count):
        stream = iter(pieces)
        yield from work(Hand(lambda: next(stream, None), 0))
        return
    try:
        yield from crew.do(pieces)
    finally:
        crew.dismiss()


class Crew:
    """Children at one work."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._pieces, self._give = os.pipe()
        self._pids: dict[int, int] = {}  # by the pipe that we hear a child through
        self._heard: dict[int, bytes] = {}
        self._poll = select.poll()

    def hire(self, count: int) -> int:
        """How many came: fewer where the system gives no more processes."""
        with contextlib.suppress(OSError):
            for _ in range(count):
                self._fork()
        os.close(self._pieces)
        return len(self._pids)

    def _fork(self) -> None:
        hear, tell = os.pipe()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(hear)
            os.close(tell)
            raise
        if pid == 0:
            for pipe in (self._give, hear, *self._pids):
                os.close(pipe)
            _labour(self._work, Hand(lambda: _next(self._pieces), parent), tell)
        os.close(tell)
        self._pids[hear], self._heard[hear] = pid, b""
        self._poll.register(hear, select.POLLIN)

    def do(self, pieces: Iterable[Piece]) -> Iterator[Any]:
        given = done = 0
        for piece in pieces:
            os.write(self._give, PIECE.pack(*piece))
            given += 1
            for told in self._listen(wait=given - done >= OUTSTANDING):
                done += 1
                yield told
        os.close(self._give)
        self._give = -1
        while done < given:
            for told in self._listen(wait=True):
                done += 1
                yield told

    def _listen(self, wait: bool) -> list[Any]:
        told = []
        for pipe, _ in self._poll.poll(None if wait else 0):
            data = os.read(pipe, 1 << 16)
            if not data:
                self._end(pipe)
                continue
            *lines, self._heard[pipe] = (self._heard[pipe] + data).split(b"\n")
            told += [_understood(json.loads(line)) for line in lines]
        if wait and not told and not self._pids:
            raise Refusal("KitError", "the writers ended before their work", "try it again")
        return told

    def _end(self, pipe: int) -> None:
        """A child has ended: as it should when nothing was left, else somebody killed it."""
        self._poll.unregister(pipe)
        pid = self._pids.pop(pipe)
        os.close(pipe)
        status = os.waitpid(pid, 0)[1]
        if status:
            what = f"signal {status & 127}" if status & 127 else f"code {status >> 8}"
            raise Refusal(
                "KitError",
                f"a process that wrote files was ended by {what}",
                "was the memory full? the same command goes on",
            )

    def dismiss(self) -> None:
        """Nobody is left of them, whatever they were at."""
        if self._give >= 0:
            os.close(self._give)
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pipe, pid in self._pids.items():
            os.waitpid(pid, 0)
            os.close(pipe)
        self._pids = {}


def _next(pipe: int) -> Piece | None:
    data = os.read(pipe, PIECE.size)
    return (data and PIECE.unpack(data)) or None


def _labour(work: Work, hand: Hand, tell: int) -> None:
    """A child's whole life; it never returns into what its parent was doing."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            for told in work(hand):
                _say(tell, {"done": told})
        except BaseException as no:
            _say(tell, _in_words(no))
        code = 0
    finally:
        os._exit(code)


def _say(pipe: int, message: dict[str, Any]) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(pipe, data) :]


def _in_words(no: BaseException) -> dict[str, Any]:
    if isinstance(no, Refusal):
        return {"refusal": [no.kind, no.message, no.hint]}
    if isinstance(no, OSError):
        return {"os": [no.errno, no.strerror, no.filename]}
    return {"fault": traceback.format_exc()}


def _understood(message: dict[str, Any]) -> Any:
    """What a child has told; raises what it raised."""
    if "refusal" in message:
        raise Refusal(*message["refusal"])
    if "os" in message:
        raise OSError(*message["os"])
    if "fault" in message:
        raise RuntimeError("in a writer: " + message["fault"])
    return message["done"]
