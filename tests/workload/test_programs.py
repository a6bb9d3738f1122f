"""The two programs do the arithmetic that their description says, step by step."""

import argparse

import numpy as np
import pytest

from workload import flags

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow


def arguments(model, **changed):
    defaults = {flag.name: flag.default for flag in flags.PROGRAMS[model]}
    return argparse.Namespace(model=model, **{**defaults, **changed})


def made_up(count, shape, classes, seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, *shape), dtype=np.uint8)
    return images, random.integers(0, classes, count, dtype=np.int32)


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def bp_by_hand(start, images, labels, rows, settings, epoch):
    """The BP network in float64: forward, backward, penalty, decay, averages; (state, loss)."""
    w = {name: value.astype(np.float64) for name, value in start.items() if "/average" not in name}
    averages = {name: value.copy() for name, value in w.items()}
    for step, chosen in enumerate(rows):
        x = images[chosen].reshape(len(chosen), -1).astype(np.float64)
        before = x @ w["hidden/weights"] + w["hidden/biases"]
        h = np.maximum(before, 0)
        p = softmax(h @ w["output/weights"] + w["output/biases"])
        right = np.eye(p.shape[1])[labels[chosen]]
        loss = -np.log((p * right).sum(axis=1)).mean()
        d = (p - right) / len(chosen)
        dh = (d @ w["output/weights"].T) * (before > 0)
        gradient = {
            "hidden/weights": x.T @ dh + settings.l2 * w["hidden/weights"],
            "hidden/biases": dh.sum(axis=0),
            "output/weights": h.T @ d + settings.l2 * w["output/weights"],
            "output/biases": d.sum(axis=0),
        }
        rate = settings.learning_rate * settings.decay ** (step / epoch)
        decay = min(settings.average_decay, (1 + step + 1) / (10 + step + 1))
        for name in w:
            w[name] -= rate * gradient[name]
            averages[name] = decay * averages[name] + (1 - decay) * w[name]
    penalty = sum(settings.l2 * 0.5 * (w[f"{x}/weights"] ** 2).sum() for x in ("hidden", "output"))
    return {**w, **{f"{n}/average": v for n, v in averages.items()}}, loss + penalty


def test_bp_is_the_arithmetic_written_out_by_hand():
    from workload.loop import Loop

    settings = arguments("bp", batch=7, hidden=11, pixel_scale=255.0, learning_rate=0.3, l2=0.02)
    images, labels = made_up(30, (5, 4, 1), 3)
    loop = Loop(settings, (5, 4, 1), 3, epoch=2.5)
    start = loop.snapshot()
    rows = np.random.default_rng(1).integers(0, 30, (9, 7)).astype(np.int32)
    loss, finite = loop.train(tf.constant(images), tf.constant(labels), rows[:4], np.int32(0))
    loss, finite = loop.train(tf.constant(images), tf.constant(labels), rows[4:], np.int32(4))
    wanted, wanted_loss = bp_by_hand(start, images / 255.0, labels, rows, settings, 2.5)
    assert bool(finite) and float(loss) == pytest.approx(wanted_loss, rel=1e-5)
    found = loop.snapshot()
    assert set(found) == set(wanted)
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], rtol=2e-4, atol=2e-6, err_msg=name)


def keras_net(settings, shape, classes):
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input(shape),
            layers.Conv2D(settings.conv1, 5, padding="same", activation="relu"),
            layers.MaxPool2D(2, padding="same"),
            layers.Conv2D(settings.conv2, 5, padding="same", activation="relu"),
            layers.MaxPool2D(2, padding="same"),
            layers.Flatten(),
            layers.Dense(settings.dense, activation="relu"),
            layers.Dense(classes),
        ]
    )


def as_keras_has_it(name, state):
    """A tensor of ours; Keras keeps a dense layer with a column for each unit."""
    return state[name].T if name == "dense/weights" else state[name]


@pytest.mark.parametrize("shape", [(28, 28, 1), (13, 10, 3)])
def test_cnn_goes_where_keras_goes_from_the_same_weights(shape):
    """Without dropout (the masks differ), ten steps of Adam from equal weights."""
    from workload.loop import Loop

    settings = arguments("cnn", batch=8, keep=1.0, conv1=6, conv2=5, dense=12, learning_rate=0.01)
    images, labels = made_up(40, shape, 4)
    loop = Loop(settings, shape, 4, epoch=5.0)
    net = keras_net(settings, shape, 4)
    start = loop.snapshot()
    net.set_weights([as_keras_has_it(name, start) for name in loop.names])
    rows = np.random.default_rng(1).integers(0, 40, (10, 8)).astype(np.int32)
    loop.train(tf.constant(images), tf.constant(labels), rows, np.int32(0))
    optimizer = tf.keras.optimizers.Adam(0.01, epsilon=1e-8)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for chosen in rows:
        with tf.GradientTape() as tape:
            loss = loss_of(labels[chosen], net(images[chosen] / np.float32(255)))
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
    for name, wanted in zip(loop.names, net.get_weights(), strict=True):
        found = as_keras_has_it(name, loop.snapshot())
        assert np.abs(found - as_keras_has_it(name, start)).max() > 0.01
        np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-3, err_msg=name)


def test_the_initial_weights_are_truncated_normal_and_biases_constant():
    from workload.loop import Loop

    state = Loop(arguments("cnn"), (28, 28, 1), 10, 1.0).snapshot()
    shapes = {name: value.shape for name, value in state.items() if "adam" not in name}
    assert shapes == {
        "conv1/weights": (5, 5, 1, 32),
        "conv1/biases": (32,),
        "conv2/weights": (5, 5, 32, 64),
        "conv2/biases": (64,),
        "dense/weights": (1024, 3136),
        "dense/biases": (1024,),
        "output/weights": (1024, 10),
        "output/biases": (10,),
    }
    dense = state["dense/weights"]
    assert np.abs(dense).max() <= 0.2 and np.unique(dense).size > 100_000
    # a normal distribution cut at two sigma keeps 0.8796 of its deviation
    assert dense.std() == pytest.approx(0.08796, rel=0.01) and abs(dense.mean()) < 1e-3
    assert set(state["dense/biases"]) == {np.float32(0.1)}


def test_dropout_keeps_the_asked_share_and_depends_on_seed_and_step_alone():
    from workload import cnn

    settings = arguments("cnn", batch=50, dense=1024, keep=0.5)
    one, again, next_step = (cnn.dropout_mask(settings, tf.constant(s)).numpy() for s in (3, 3, 4))
    np.testing.assert_array_equal(one, again)
    assert set(np.unique(one)) == {0.0, 2.0} and one.mean() == pytest.approx(1.0, abs=0.02)
    assert (one != next_step).mean() == pytest.approx(0.5, abs=0.02)
    other = cnn.dropout_mask(arguments("cnn", seed=2), tf.constant(3)).numpy()
    assert (one != other).mean() == pytest.approx(0.5, abs=0.02)
