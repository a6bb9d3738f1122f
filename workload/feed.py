"""Gives the compiled loop its images: resident in the device's memory, or streamed from disk."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from workload.data import Part

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


class Resident:
    """The whole part stays in memory as it is (bytes); a call of the loop gets positions only."""

    reads_ahead = False

    def __init__(self, part: Part) -> None:
        self.images, self.labels = tf.constant(part.images), tf.constant(part.labels)

    def __call__(self, rows: np.ndarray) -> tuple[Any, Any, Any]:
        """(images, labels, positions in them) for rows of shape (steps, batch)."""
        return self.images, self.labels, tf.constant(rows)

    def expected(self, step: int) -> None:
        """Nothing was read ahead."""

    def ahead(self, step: int, rows: np.ndarray) -> None:
        """Nothing needs to be."""


class Streamed:
    """Only the rows of one call are read, from the memory-mapped file; those of the next call by
    a thread, while this one is trained on."""

    reads_ahead = True

    def __init__(self, part: Part) -> None:
        self.part = part
        self._reader = ThreadPoolExecutor(1, "reader")
        self._next: tuple[int, np.ndarray, Future[Arrays]] | None = None

    def __call__(self, rows: np.ndarray) -> tuple[Any, Any, Any]:
        """(images, labels, positions in them) for rows of shape (steps, batch)."""
        read_ahead = self._next is not None and self._next[1] is rows
        images, labels, positions = (
            self._next[2].result() if self._next and read_ahead else self._read(rows)
        )
        return tf.constant(images), tf.constant(labels), tf.constant(positions)

    def expected(self, step: int) -> np.ndarray | None:
        """The rows that were read ahead for the call which begins at `step`."""
        return self._next[1] if self._next and self._next[0] == step else None

    def ahead(self, step: int, rows: np.ndarray) -> None:
        """Reads the rows of the call that begins at `step` in the background."""
        self._next = step, rows, self._reader.submit(self._read, rows)

    def _read(self, rows: np.ndarray) -> Arrays:
        wanted, places = np.unique(rows, return_inverse=True)  # ascending: kind to the disk
        positions = places.reshape(rows.shape).astype(np.int32)
        return self.part.images[wanted], self.part.labels[wanted], positions


def feed(part: Part, resident_mib: int) -> Resident | Streamed:
    """The right one of the two for a part of this size."""
    return Resident(part) if part.images.nbytes <= resident_mib << 20 else Streamed(part)
