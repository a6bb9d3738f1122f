"""The order of the data and the splits are pure functions, equal to what the programs had."""

import hashlib

import numpy as np

from workload import order

# SHA-256 of train_test_split(np.arange(60000), test_size=0.1, random_state=7) of scikit-learn,
# training side then validation side, as little-endian int32
SPLIT_OF_60000 = "a374903178eb3cdd1edeb75f7921aed3db0621715acb29e67906200315fe9bcf"


def test_the_share_is_split_as_scikit_learn_does():
    train, held = order.hold_out_share(60000, 0.1, 7)
    both = np.concatenate([train, held]).astype("<i4").tobytes()
    assert (len(train), len(held)) == (54000, 6000)
    assert hashlib.sha256(both).hexdigest() == SPLIT_OF_60000


def test_where_scikit_learn_is_there_it_agrees_at_odd_sizes():
    split = __import__("pytest").importorskip("sklearn.model_selection").train_test_split
    for count, share, seed in ((10, 0.1, 7), (101, 0.25, 0), (999, 0.333, 42)):
        theirs = split(np.arange(count), test_size=share, random_state=seed)
        ours = order.hold_out_share(count, share, seed)
        assert [list(part) for part in theirs] == [list(part) for part in ours]


def test_the_first_images_are_held_out():
    train, held = order.hold_out_first(60000, 5000)
    assert (train[0], train[-1], held[0], held[-1]) == (5000, 59999, 0, 4999)


def test_every_epoch_uses_every_row_once_in_another_order():
    rows = order.batches(seed=3, count=17, batch=5, first_step=0, steps=17).ravel()
    epochs = rows.reshape(5, 17)
    for epoch in epochs:
        assert sorted(epoch) == list(range(17))
    assert len({tuple(epoch) for epoch in epochs}) == 5


def test_the_order_does_not_depend_on_where_one_starts():
    whole = order.batches(seed=3, count=17, batch=5, first_step=0, steps=40)
    for first, steps in ((0, 1), (3, 4), (7, 33), (39, 1)):
        part = order.batches(seed=3, count=17, batch=5, first_step=first, steps=steps)
        np.testing.assert_array_equal(part, whole[first : first + steps])


def test_another_seed_is_another_order():
    one, two = (order.batches(seed, 1000, 10, 0, 100) for seed in (1, 2))
    assert not np.array_equal(one, two)
