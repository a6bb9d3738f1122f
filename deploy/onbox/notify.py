"""Sends notices: to every terminal of the box at once, to channels by children with a deadline."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import subprocess
import sys
import time
from typing import Any, Callable, NamedTuple

DEADLINE = 30.0  # seconds that a channel may take; the stop never waits for one


class Notice(NamedTuple):
    """What is told: a title of one line, a text, and fields for programs."""

    title: str
    text: str
    fields: dict[str, Any]


class Sending(NamedTuple):
    channel: str
    child: subprocess.Popen[bytes]
    deadline: float


class Outbox:
    """Channels are {name, url}. A webhook is sent by the standard library, the rest by Apprise's
    bundle where it has been unpacked. URLs are secrets: they travel by stdin and are never said."""

    def __init__(self, home: str, say: Callable[[str], None]) -> None:
        self.home, self.say = home, say
        self._sending: list[Sending] = []

    def send(self, channels: list[dict[str, str]], notice: Notice) -> None:
        write_to_terminals(f"{notice.title}\n{notice.text}")
        self.reap()
        for channel in channels:
            command = self._command(channel["url"])
            if command is None:
                self.say(f"channel {channel['name']}: Apprise is not on this box; arm it again")
                continue
            self._start(channel, command, notice)

    def _command(self, url: str) -> list[str] | None:
        if url.startswith(("http://", "https://")):
            return [sys.executable, sys.argv[0], "post"]
        bundles = sorted(glob.glob(os.path.join(self.home, "notify-*", "send.py")))
        return [sys.executable, bundles[-1]] if bundles else None

    def _start(self, channel: dict[str, str], command: list[str], notice: Notice) -> None:
        body = {"url": channel["url"], "title": notice.title, "text": notice.text}
        request = json.dumps({**body, "fields": notice.fields}).encode() + b"\n"
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert child.stdin
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(request)  # far below a pipe's 64 KiB: never waits for the child
                child.stdin.close()
        except OSError as no:
            self.say(f"channel {channel['name']}: {no}")
            return
        self._sending.append(Sending(channel["name"], child, time.monotonic() + DEADLINE))

    def reap(self) -> None:
        """Collect children that have ended, kill those that are over their deadline, say failures."""
        for sending in list(self._sending):
            code = sending.child.poll()
            if code is None and time.monotonic() < sending.deadline:
                continue
            if code is None:
                sending.child.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    sending.child.wait(1)
            if code != 0:
                why = "no answer in time" if code is None else f"failed ({code})"
                self.say(f"channel {sending.channel}: {why}")
            self._sending.remove(sending)

    def wait(self, seconds: float) -> None:
        """Give what is under way a last moment before the box goes."""
        deadline = time.monotonic() + seconds
        while self._sending and time.monotonic() < deadline:
            time.sleep(0.1)
            self.reap()


def write_to_terminals(text: str, folder: str = "/dev/pts") -> int:
    """Write to every terminal that we may write to, and return how many; never waits for one that
    is stopped. `wall` would miss those that have no login record."""
    shown = "".join(c for c in text if c.isprintable() or c == "\n").replace("\n", "\r\n  ")
    told = 0
    for path in sorted(glob.glob(os.path.join(folder, "[0-9]*")) + ["/dev/console"]):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                told += os.write(fd, f"\r\n\a*** {shown}\r\n".encode(errors="replace")) > 0
            finally:
                os.close(fd)
    return told
