"""The BP network: one hidden layer, gradient descent with decay, L2 penalty, averaged weights."""

from __future__ import annotations

import argparse
import math

import tensorflow as tf

Tensors = dict[str, tf.Tensor]
Variables = dict[str, tf.Variable]
AVERAGE = "/average"


def initial(arguments: argparse.Namespace, shape: tuple[int, int, int], classes: int) -> Tensors:
    """Weights by name, truncated normal, and biases; a function of the seed alone."""
    sizes = {"hidden": (math.prod(shape), arguments.hidden), "output": (arguments.hidden, classes)}
    values = {}
    for number, (layer, dims) in enumerate(sizes.items()):
        values[f"{layer}/weights"] = tf.random.stateless_truncated_normal(
            dims, seed=(arguments.seed, number), stddev=arguments.stddev
        )
        values[f"{layer}/biases"] = tf.fill(dims[-1:], arguments.bias)
    return values


def slots(values: Tensors, arguments: argparse.Namespace) -> Tensors:
    """The moving averages, which start at the initial values."""
    return {name + AVERAGE: value for name, value in values.items()}


def logits(
    weights: Variables | Tensors, pixels: tf.Tensor, dtype: tf.DType, kept: tf.Tensor | None = None
) -> tf.Tensor:
    """Float32 scores of shape (batch, classes) for pixels (batch, height, width, channels)."""
    w = {name: tf.cast(value, dtype) for name, value in weights.items()}
    x = tf.reshape(tf.cast(pixels, dtype), (-1, w["hidden/weights"].shape[0]))
    x = tf.nn.relu(x @ w["hidden/weights"] + w["hidden/biases"])
    return tf.cast(x @ w["output/weights"] + w["output/biases"], tf.float32)


def dropout_mask(arguments: argparse.Namespace, step: tf.Tensor) -> None:
    """This program has no dropout."""


def apply(
    arguments: argparse.Namespace, state: Variables, gradients: Tensors, step: tf.Tensor, epoch: int
) -> None:
    """One step of gradient descent, then the moving averages follow.

    step: steps done before this one. epoch: steps in an epoch. The rate is
    learning_rate * decay ** (step / epoch); the penalty l2 * sum(w ** 2) / 2 adds l2 * w to a
    weight's gradient. The averages take min(average_decay, (1 + n) / (10 + n)) of the past, n
    being the steps done after this one.
    """
    done = tf.cast(step, tf.float32)
    rate = arguments.learning_rate * arguments.decay ** (done / epoch)
    count = done + 1.0
    fresh = 1.0 - tf.minimum(arguments.average_decay, (1.0 + count) / (10.0 + count))
    for name, gradient in gradients.items():
        if name.endswith("weights"):
            gradient += arguments.l2 * state[name]
        descend(state[name], rate, gradient)
        average = state[name + AVERAGE]
        descend(average, fresh, average - state[name])


def descend(variable: tf.Variable, rate: tf.Tensor, direction: tf.Tensor) -> None:
    """variable -= rate * direction in one pass, on this replica's own copy if there are several."""
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=direction)


def penalty(arguments: argparse.Namespace, state: Variables) -> tf.Tensor:
    """What the loss holds beside the cross-entropy: l2 * sum(w ** 2) / 2 over both layers."""
    return arguments.l2 * tf.add_n(
        [tf.nn.l2_loss(state[f"{layer}/weights"]) for layer in ("hidden", "output")]
    )


def evaluated(state: Variables) -> Tensors:
    """The weights that accuracies are measured with: the averaged ones."""
    return {n.removesuffix(AVERAGE): v for n, v in state.items() if n.endswith(AVERAGE)}
