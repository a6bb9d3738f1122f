"""Gives the compiled loop its images: resident in the device's memory, or streamed from disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from workload.data import Part


class Resident:
    """The whole part stays in memory as it is (bytes); a call of the loop gets positions only."""

    def __init__(self, part: Part) -> None:
        self.images, self.labels = tf.constant(part.images), tf.constant(part.labels)

    def __call__(self, rows: np.ndarray) -> tuple[Any, Any, Any]:
        """(images, labels, positions in them) for rows of shape (steps, batch)."""
        return self.images, self.labels, tf.constant(rows)


class Streamed:
    """Only the rows of one call are read, from the memory-mapped file."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __call__(self, rows: np.ndarray) -> tuple[Any, Any, Any]:
        """(images, labels, positions in them) for rows of shape (steps, batch)."""
        wanted, places = np.unique(rows, return_inverse=True)  # ascending: kind to the disk
        images, labels = self.part.images[wanted], self.part.labels[wanted]
        positions = places.reshape(rows.shape).astype(np.int32)
        return tf.constant(images), tf.constant(labels), tf.constant(positions)


def feed(part: Part, resident_mib: int) -> Resident | Streamed:
    """The right one of the two for a part of this size."""
    return Resident(part) if part.images.nbytes <= resident_mib << 20 else Streamed(part)
