"""The streamed feed reads the next call's images while this call is trained on."""

import threading

import numpy as np
import pytest

from workload.data import Part

pytestmark = pytest.mark.tensorflow


class Disk:
    """Images on a disk that answers only when it is let."""

    def __init__(self, images):
        self.images, self.asked, self.answer = images, threading.Event(), threading.Event()

    def __getitem__(self, rows):
        self.asked.set()
        assert self.answer.wait(30)
        return self.images[rows]


def test_the_next_call_is_read_while_this_one_is_trained_on():
    from workload.feed import Streamed

    images, labels = np.arange(40, dtype=np.uint8).reshape(10, 2, 2, 1), np.arange(10)
    disk = Disk(images)
    feed = Streamed(Part(disk, labels))
    rows = np.array([[3, 1], [3, 9]], dtype=np.int32)
    feed.ahead(7, rows)
    assert disk.asked.wait(30)  # before anybody needs it
    disk.answer.set()
    assert feed.expected(6) is None and feed.expected(7) is rows
    got, found, places = (each.numpy() for each in feed(rows))
    assert np.array_equal(got[places], images[rows]) and np.array_equal(found[places], rows)
    disk.asked.clear()
    feed(rows)
    assert not disk.asked.is_set()
    got, _, places = (each.numpy() for each in feed(rows[:1]))  # other ones are read when needed
    assert disk.asked.is_set() and np.array_equal(got[places], images[rows[:1]])
