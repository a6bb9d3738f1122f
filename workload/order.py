"""Which rows are trained on, and in what order: pure functions of counts, seeds and steps."""

from __future__ import annotations

import functools
import math

import numpy as np


def hold_out_first(count: int, held: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, validation rows) of `count` images, the first `held` for validation."""
    rows = np.arange(count, dtype=np.int32)
    return rows[held:], rows[:held]


def hold_out_share(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, validation rows), equal to scikit-learn's train_test_split index by index.

    train_test_split(test_size=share, random_state=seed) draws one permutation from the legacy
    Mersenne Twister, takes its first ceil(count * share) for the test side and the rest for
    training.
    """
    rows = np.random.RandomState(seed).permutation(count).astype(np.int32)
    held = math.ceil(count * share)
    return rows[held:], rows[:held]


@functools.lru_cache(maxsize=2)
def _epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch))))
    return generator.permutation(count)


def batches(seed: int, count: int, batch: int, first_step: int, steps: int) -> np.ndarray:
    """Positions of shape (steps, batch) among `count` training rows, from step `first_step` on.

    The epochs' permutations follow one another without a gap, so a batch may hold the end of
    one epoch and the start of the next, and every row is used once an epoch. Nothing but
    (seed, epoch) decides the order: a resumed run goes on exactly where it was.
    """
    start, stop = first_step * batch, (first_step + steps) * batch
    pieces = []
    while start < stop:
        epoch, offset = divmod(start, count)
        taken = min(stop - start, count - offset)
        pieces.append(_epoch_order(seed, epoch, count)[offset : offset + taken])
        start += taken
    return np.concatenate(pieces).astype(np.int32).reshape(steps, batch)
