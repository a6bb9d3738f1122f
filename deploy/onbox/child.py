"""Does what may hang (a dead disk, a dead engine, a provider's program) in a child with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from typing import Any, Callable, NamedTuple, Sequence


class TookTooLong(Exception):
    """The child was killed at its deadline."""


def in_child(work: Callable[[], Any], seconds: float) -> Any:
    """The JSON-able value of `work()`, done in a fork; TookTooLong, or RuntimeError with its error.

    Only for a process without threads. A child that hangs in the kernel is left behind.
    """
    answer, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(answer)
        _work_and_exit(work, end)
    os.close(end)
    try:
        text = _read_until(answer, time.monotonic() + seconds)
    except TookTooLong:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(answer)
        _collect(pid)
    value = json.loads(text or b'{"error": "the child died"}')
    if "error" in value:
        raise RuntimeError(value["error"])
    return value["value"]


def _work_and_exit(work: Callable[[], Any], end: int) -> None:
    try:
        signal.set_wakeup_fd(-1)
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)
        said = {"value": work()}
    except BaseException as fault:
        said = {"error": f"{type(fault).__name__}: {fault}"}
    with contextlib.suppress(BaseException):
        data = json.dumps(said).encode()
        while data:
            data = data[os.write(end, data) :]
    os._exit(0)


def _read_until(fd: int, deadline: float) -> bytes:
    text = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise TookTooLong()
        more = os.read(fd, 65536)
        if not more:
            return text
        text += more


def _collect(pid: int) -> None:
    """Take a child's exit code if it has one within a second; a zombie more is no harm."""
    deadline = time.monotonic() + 1
    with contextlib.suppress(OSError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.005)


class Ended(NamedTuple):
    """How a program ended: its code (None: killed at the deadline) and its last words."""

    code: int | None
    text: str


def run_program(command: Sequence[str], seconds: float, env: dict[str, str] | None = None) -> Ended:
    """Run a program in a session of its own, with no input; its whole group is killed at the
    deadline, and what it printed is read from a file, which no grandchild can hold open."""
    with tempfile.TemporaryFile() as words:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except OSError as no:
            return Ended(127, f"{command[0]}: {no.strerror}")
        code: int | None
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            code = None
            _collect(child.pid)
        words.seek(max(0, words.seek(0, os.SEEK_END) - 4000))
        return Ended(code, words.read().decode(errors="replace").strip())
