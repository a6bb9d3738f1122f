"""A stream that is begun while nobody knows yet whether it gets in: its login costs no time then."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong

from deploy.effects.link import Child
from deploy.onbox.wire import EVENT


class Ahead:
    """A command on its way by the system's ssh; its first event says that it runs there."""

    def __init__(self, command: str, child: Child) -> None:
        self.command = command
        self._child = child
        self._runs: Future[bool] = Future()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            for line in iter(self._child.stderr.readline, b""):
                if line.startswith(EVENT):
                    self._runs.set_result(True)
                    return  # what comes after it is for whoever takes the stream
        except (OSError, ValueError):
            pass  # closed meanwhile
        self._runs.set_result(False)

    def take(self, patience: float) -> Child | None:
        """The stream, once its command runs; None where it got no further within so many seconds."""
        try:
            if self._runs.result(patience):
                return self._child
        except TookTooLong:
            pass
        self.close()
        return None

    def close(self) -> None:
        self._child.close()
