"""The way to a box: run one command with bytes in and bytes out, or hold its three streams open."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple, Protocol

from deploy.errors import LinkLost

SILENCE = 30.0  # seconds without a byte from a box that promised a sign of life every 5

OnLine = Callable[[bytes], None]


class Done(NamedTuple):
    """How a command ended: exit code and what it printed."""

    code: int
    stdout: bytes
    stderr: bytes


class Stream(Protocol):
    """A command that runs on the box, with its streams; `close` ends it if it still runs."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def wait(self) -> int: ...
    def close(self) -> None: ...


class Link(Protocol):
    """A box that can be reached. `command` is one string for a POSIX shell on the box."""

    name: str

    def run(self, command: str, stdin: bytes = b"", on_line: OnLine | None = None) -> Done:
        """Run to the end; `on_line` gets stderr line by line. LinkLost after SILENCE seconds."""
        ...

    def stream(self, command: str) -> Stream: ...

    def streams_apart(self) -> bool:
        """Whether a stream goes its own way, so that it takes no session from `run`."""
        ...

    def terminal(self, command: str) -> list[str]:
        """The arguments of a local program that gives a terminal there; "" asks for a shell."""
        ...

    def describe(self) -> dict[str, str]:
        """For people: `route`, `bulk` (what carries bulk data), `host_key` (how it is known)."""
        ...

    def close(self) -> None: ...


class Child:
    """A local process as a Stream: the box `local`, or the system's ssh."""

    def __init__(self, arguments: list[str], shell_env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if shell_env is None else {**os.environ, **shell_env},
            start_new_session=True,  # Ctrl-C is ours to handle, not the child's
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout: IO[bytes] = self.process.stdout
        self.stderr: IO[bytes] = self.process.stderr

    def wait(self) -> int:
        return self.process.wait()

    def close(self) -> None:
        # ended first: closing a pipe waits for a thread that is blocked in writing to it
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for end in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                end.close()


class LocalLink:
    """This machine, without SSH: the same commands by the same shell."""

    name = "local"

    def run(self, command: str, stdin: bytes = b"", on_line: OnLine | None = None) -> Done:
        stream = self.stream(command)
        try:
            return finish(stream, stdin, on_line, self.name)
        finally:
            stream.close()

    def stream(self, command: str) -> Stream:
        return Child(["/bin/sh", "-c", command])

    def streams_apart(self) -> bool:
        return True

    def terminal(self, command: str) -> list[str]:
        shell = os.environ.get("SHELL") or "/bin/sh"
        return [shell, "-c", command] if command else [shell, "-l"]

    def describe(self) -> dict[str, str]:
        return {"route": "this machine", "bulk": "a pipe", "host_key": "none is needed"}

    def close(self) -> None:
        pass


def finish(
    stream: Stream, stdin: bytes | Iterable[bytes], on_line: OnLine | None, name: str
) -> Done:
    """Feed a stream, read both its outputs to the end, wait for its exit code."""
    arrived: queue.Queue[tuple[str, bytes]] = queue.Queue()
    threading.Thread(target=_feed, args=(stream.stdin, stdin), daemon=True).start()
    for which, end in (("out", stream.stdout), ("err", stream.stderr)):
        threading.Thread(target=_drain, args=(end, which, arrived), daemon=True).start()
    collected: dict[str, list[bytes]] = {"out": [], "err": []}
    for which, line in _until_both_end(arrived, name):
        collected[which].append(line)
        if which == "err" and on_line:
            on_line(line)
    return Done(stream.wait(), b"".join(collected["out"]), b"".join(collected["err"]))


def _until_both_end(
    arrived: queue.Queue[tuple[str, bytes]], name: str
) -> Iterator[tuple[str, bytes]]:
    last, still_open = time.monotonic(), 2
    while still_open:
        try:
            which, line = arrived.get(timeout=max(0.1, last + SILENCE - time.monotonic()))
        except queue.Empty:
            raise LinkLost(
                f"{name}: nothing heard for {SILENCE:.0f} s", "the same command goes on"
            ) from None
        last = time.monotonic()
        if line:
            yield which, line
        else:
            still_open -= 1


def _feed(end: IO[bytes], data: bytes | Iterable[bytes]) -> None:
    """Write it all and close, also where making the next block fails: the box then sees the end."""
    with contextlib.suppress(OSError), contextlib.closing(end):
        for block in [data] if isinstance(data, bytes) else data:
            end.write(block)


def _drain(end: IO[bytes], which: str, arrived: queue.Queue[tuple[str, bytes]]) -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in iter(end.readline, b""):
            arrived.put((which, line))
    arrived.put((which, b""))
