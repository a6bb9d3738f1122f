"""Sorts a manifest's entries into heaps that may outgrow the memory: what is too much goes to files."""

from __future__ import annotations

import contextlib
import marshal
import os
import shutil
from typing import Iterator

from .manifest import Entry

IN_MEMORY = 50_000  # entries of all heaps together


class Spill:
    """Heaps of entries by name; `folder` is made when it is needed."""

    def __init__(self, folder: str, in_memory: int = IN_MEMORY) -> None:
        self._folder, self._limit = folder, in_memory
        self._heaps: dict[str, list[Entry]] = {}
        self._count = 0

    def add(self, name: str, entry: Entry) -> None:
        self._heaps.setdefault(name, []).append(entry)
        self._count += 1
        if self._count >= self._limit:
            self._write_out()

    def _write_out(self) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for name, heap in self._heaps.items():
            if heap:
                with open(os.path.join(self._folder, name), "ab") as file:
                    marshal.dump([tuple(each) for each in heap], file)
                heap.clear()
        self._count = 0

    def names(self) -> list[str]:
        """In the order in which they first came."""
        return list(self._heaps)

    def slices(self, name: str) -> Iterator[list[Entry]]:
        """A heap in lists of at most the limit, in the order in which its entries came."""
        with contextlib.suppress(FileNotFoundError):
            with open(os.path.join(self._folder, name), "rb") as file:
                while True:
                    try:
                        yield [Entry(*each) for each in marshal.load(file)]
                    except EOFError:
                        break
        if self._heaps.get(name):
            yield self._heaps[name]

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._heaps.clear()
