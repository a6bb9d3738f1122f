"""A server on the box that lives while we hold it: started by one request, ended by letting go."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.link import Done, Stream
from deploy.errors import LinkLost
from deploy.onbox.wire import EVENT

SIGN_OF_LIFE = 10.0  # seconds between two bytes to the box, which lets go after 60 without one


class Held:
    """The box's side is up: `port` there; `ended` is set when it is gone."""

    def __init__(self, port: int, ended: threading.Event) -> None:
        self.port, self.ended = port, ended


@contextlib.contextmanager
def held(box: Agent, verb: str, say: Callable[[str], None], **request: Any) -> Iterator[Held]:
    """Start `verb` there and wait for its `ready` event; the box's refusal is raised here.

    When the block ends, however it ends, stdin is closed, and the box stops the server.
    """
    box.call("facts")  # the program is on the box from here on
    stream = box.open(verb, **request)
    try:
        port = _ready(stream, say)
        if port is None:
            raise _refusal(box, verb, stream)
        ended = threading.Event()
        threading.Thread(target=_watch, args=(stream, ended), daemon=True).start()
        threading.Thread(target=_breathe, args=(stream, ended), daemon=True).start()
        yield Held(port, ended)
        if ended.is_set():
            raise _refusal(box, verb, stream)
    finally:
        stream.close()


def _ready(stream: Stream, say: Callable[[str], None]) -> int | None:
    """The port of the `ready` event; None where the request ended before."""
    for line in iter(stream.stderr.readline, b""):
        event = json.loads(line[len(EVENT) :]) if line.startswith(EVENT) else {}
        if "say" in event:
            say(str(event["say"]))
        if "ready" in event:
            return int(event["ready"])
    return None


def _refusal(box: Agent, verb: str, stream: Stream) -> Exception:
    try:
        output = stream.stdout.read()
        box.answer(verb, Done(stream.wait(), output, b""))
    except Exception as no:
        return no
    return LinkLost(f"{box.link.name}: {verb} ended", "the same command starts it again")


def _watch(stream: Stream, ended: threading.Event) -> None:
    with contextlib.suppress(OSError, ValueError):
        while stream.stderr.readline():
            pass
    ended.set()


def _breathe(stream: Stream, ended: threading.Event) -> None:
    while not ended.wait(SIGN_OF_LIFE):
        with contextlib.suppress(OSError, ValueError):
            stream.stdin.write(b"\n")
            stream.stdin.flush()
