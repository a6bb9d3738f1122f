"""How a request and its answer travel: one JSON line in, events on stderr, one answer on stdout.

stdin   one line of JSON (the request), then bytes if the verb takes bulk data; a short request
        without a secret may be an argument instead, in URL-safe base64; blank lines may come first
stderr  `@gpubox-event {json}` lines while it works, at least one every BEAT seconds
stdout  anything a login script prints, then either
            @gpubox-answer\n{json}\n@gpubox-end\n
        or, where a verb sends bulk data first,
            @gpubox-bulk\n, frames (4 bytes big-endian length, bytes), an empty frame,
            then the answer
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import threading
import time
from typing import Any, BinaryIO

ANSWER = b"@gpubox-answer\n"
BULK = b"@gpubox-bulk\n"
END = b"\n@gpubox-end\n"
EVENT = b"@gpubox-event "
LIFE = 0xFFFFFFFF  # instead of a frame's length, from the laptop: a sign of life
ZLIB = 0x80000000  # in a frame's length, from the laptop: what follows is zlib data
CHANGES = 0x40000000  # … it is lines of changes, which may come anywhere between two others
BEAT = 5.0  # seconds; the laptop takes 30 s of silence for a dead link


class Wire:
    """One request's two ends; events may come from any thread."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO, stderr: BinaryIO) -> None:
        self.input = stdin
        self.output = stdout
        self._stderr = stderr
        self._lock = threading.Lock()
        self._last = time.monotonic()

    def request(self) -> dict[str, Any]:
        line = self.input.readline()
        while line.isspace():  # it woke a start that waited for the program to be installed
            line = self.input.readline()
        return dict(json.loads(line)) if line.strip() else {}

    def event(self, **fields: Any) -> None:
        """Tell the laptop how far it is; a laptop that has gone away is not an error."""
        with self._lock:
            self._last = time.monotonic()
            try:
                self._stderr.write(EVENT + json.dumps(fields).encode() + b"\n")
                self._stderr.flush()
            except OSError:
                pass

    def beat_for_ever(self) -> None:
        """Send a sign of life whenever nothing else was said for BEAT seconds (a daemon thread)."""

        def beat() -> None:
            while True:
                time.sleep(BEAT / 2)
                if time.monotonic() - self._last >= BEAT:
                    self.event(alive=True)

        threading.Thread(target=beat, daemon=True).start()

    def start_bulk(self) -> None:
        self.output.write(b"\n" + BULK)

    def frame(self, data: bytes) -> None:
        self.output.write(struct.pack(">I", len(data)))
        self.output.write(data)

    def answer(self, value: dict[str, Any]) -> None:
        self.output.write(b"\n" + ANSWER + json.dumps(value).encode() + END)
        self.output.flush()


def request_of(argument: str) -> dict[str, Any]:
    return dict(json.loads(base64.urlsafe_b64decode(argument)))


def standard_wire() -> Wire:
    return Wire(sys.stdin.buffer, sys.stdout.buffer, sys.stderr.buffer)


def find_answer(stdout: bytes) -> dict[str, Any] | None:
    """The answer in what a command printed, whatever noise stands around it; None without one."""
    start = stdout.rfind(ANSWER)
    if start < 0:
        return None
    end = stdout.find(END, start)
    return None if end < 0 else dict(json.loads(stdout[start + len(ANSWER) : end]))
