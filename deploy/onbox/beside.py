"""What goes on in threads beside the receiving of an upload: parts are synced, the manifest is written."""

from __future__ import annotations

import os
import queue
import threading
from typing import BinaryIO, Iterator

from .commit import Draft


class Drafter:
    """Writes the draft in a thread beside: at the end of a long upload the manifest is there too."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._lines: queue.Queue[bytes | None] = queue.Queue(8)
        self._faults: list[BaseException] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def take(self, lines: bytes) -> None:
        """Some whole lines of changes."""
        self._lines.put(lines)

    def finish(self) -> Draft:
        """The draft with all changes in it; what went wrong is raised here."""
        self._lines.put(None)
        self._thread.join()
        if self._faults:
            raise self._faults[0]
        return self.draft

    def _work(self) -> None:
        try:
            self.draft.write(self._changes())
        except BaseException as fault:
            self._faults.append(fault)
            for _ in iter(self._lines.get, None):
                pass  # the one that gives them must not wait for ever

    def _changes(self) -> Iterator[str]:
        for lines in iter(self._lines.get, None):
            yield from lines.decode("ascii").splitlines(True)


class Syncer:
    """Syncs parts to the disk and names them whole, while the next ones arrive."""

    def __init__(self) -> None:
        self._parts: queue.Queue[tuple[int, str, str] | None] = queue.Queue(8)
        self._faults: list[BaseException] = []
        self._thread: threading.Thread | None = None

    def add(self, file: BinaryIO, path: str, final: str) -> None:
        """A whole part: sync it, and rename it then."""
        with file:
            self._put(file, path, final)

    def begin(self, file: BinaryIO) -> None:
        """Sync what has been written by now."""
        self._put(file, "", "")

    def _put(self, file: BinaryIO, path: str, final: str) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._parts.put((os.dup(file.fileno()), path, final))

    def _work(self) -> None:
        for fd, path, final in iter(self._parts.get, None):
            try:
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
                if final:
                    os.rename(path, final)
            except BaseException as fault:
                self._faults.append(fault)

    def finish(self) -> None:
        """Wait until all is synced; the first error is raised here."""
        if self._thread is not None:
            self._parts.put(None)
            self._thread.join()
            self._thread = None
        if self._faults:
            raise self._faults[0]
