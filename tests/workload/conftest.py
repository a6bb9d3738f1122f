"""Tests of the workload run its real programs, by the interpreter that has TensorFlow."""

import numpy as np
import pytest

from bench import mnist as known_mnist
from tests.workload.kit import Nursery, Workload, write_set


@pytest.fixture(scope="session")
def mnist():
    """The folder with MNIST's four files."""
    return known_mnist.folder()


@pytest.fixture
def small_set(tmp_path):
    """600 images of 12 x 10 in 4 classes, told apart by the quarter that is bright."""
    random = np.random.default_rng(5)
    labels = np.arange(600, dtype=np.uint8) % 4
    images = random.integers(0, 60, (600, 12, 10), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        top, left = 6 * (label // 2), 5 * (label % 2)
        image[top : top + 6, left : left + 5] += 150
    return write_set(tmp_path / "set", images, labels)


@pytest.fixture(scope="session")
def nursery():
    """Starts workload processes quickly, one at a time."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def workload(tmp_path, small_set, nursery):
    """`workload("bp", "--steps", 10)` on the small set; `.output`, `.checkpoints`, `.data`."""
    return Workload(tmp_path / "run", small_set, nursery)
