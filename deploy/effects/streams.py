"""The sessions that an upload sends its parts over: one, or several where the line loses packets."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from deploy.effects.session import Session

Work = Callable[[Session], Any]


class Streams:
    """Does each piece of work with one of the sessions, in the order given, as many at once.

    The first session is the one that commits. The threads are daemons: after Ctrl-C nobody waits
    for one that still reads a large file.
    """

    def __init__(self, sessions: list[Session]) -> None:
        self.sessions = sessions
        self._work: queue.SimpleQueue[tuple[Work, Future[Any]]] = queue.SimpleQueue()
        for each in sessions:
            threading.Thread(target=self._serve, args=(each,), daemon=True).start()

    def __len__(self) -> int:
        return len(self.sessions)

    def do(self, work: Work) -> Future[Any]:
        """Have it done soon."""
        future: Future[Any] = Future()
        self._work.put((work, future))
        return future

    def _serve(self, session: Session) -> None:
        while True:
            work, future = self._work.get()
            try:
                future.set_result(work(session))
            except BaseException as fault:
                future.set_exception(fault)

    @property
    def sent(self) -> int:
        """Bytes that have gone over the line."""
        return sum(each.sent for each in self.sessions)

    @property
    def damaged(self) -> bool:
        """Whether the box got a part that was not what its checksum says."""
        return any(each.damaged for each in self.sessions)

    def changes(self, lines: Iterable[str]) -> None:
        self.sessions[0].changes(lines)

    def commit(self, version: str, header: dict[str, Any]) -> None:
        """Have it committed, once the others have said that all of theirs is on the box's disk."""
        for each in self.sessions[1:]:
            each.answer()
        self.sessions[0].commit(version, header)

    def answer(self) -> dict[str, Any]:
        """What the box says to the commit; its refusal is raised."""
        return self.sessions[0].answer()
