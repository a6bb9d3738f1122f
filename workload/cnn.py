"""The convolutional net: two convolutions, a dense layer with dropout, softmax, Adam."""

from __future__ import annotations

import argparse
import math

import tensorflow as tf

Tensors = dict[str, tf.Tensor]
Variables = dict[str, tf.Variable]


def initial(arguments: argparse.Namespace, shape: tuple[int, int, int], classes: int) -> Tensors:
    """Weights by name, truncated normal, and biases; a function of the seed alone."""
    height, width, channels = shape
    side, conv1, conv2, dense = (
        arguments.kernel,
        arguments.conv1,
        arguments.conv2,
        arguments.dense,
    )
    flat = math.ceil(height / 4) * math.ceil(width / 4) * conv2
    layers = {  # the shape of the weights, and the number of biases
        "conv1": ((side, side, channels, conv1), conv1),
        "conv2": ((side, side, conv1, conv2), conv2),
        # a row for each unit: products of a small batch with such weights take 18 CPU ms a step
        # in all, with a column for each unit 26
        "dense": ((dense, flat), dense),
        "output": ((dense, classes), classes),
    }
    values = {}
    for number, (layer, (dims, units)) in enumerate(layers.items()):
        values[f"{layer}/weights"] = tf.random.stateless_truncated_normal(
            dims, seed=(arguments.seed, number), stddev=arguments.stddev
        )
        values[f"{layer}/biases"] = tf.fill([units], arguments.bias)
    return values


def slots(values: Tensors, arguments: argparse.Namespace) -> Tensors:
    """Adam's two moments of every weight, zero at the start."""
    zeros = {f"{name}/adam_{slot}": tf.zeros_like(v) for name, v in values.items() for slot in "mv"}
    return zeros


def logits(
    weights: Variables | Tensors, pixels: tf.Tensor, dtype: tf.DType, kept: tf.Tensor | None = None
) -> tf.Tensor:
    """Float32 scores of shape (batch, classes) for scaled pixels (batch, height, width, channels).

    kept: in training, what each dense unit is multiplied by (0, or 1 / keep).
    """
    w = {name: tf.cast(value, dtype) for name, value in weights.items()}
    x = tf.cast(pixels, dtype)
    for layer in ("conv1", "conv2"):
        x = tf.nn.conv2d(x, w[f"{layer}/weights"], strides=1, padding="SAME")
        # the maximum commutes with adding a bias and with relu, which then touch a quarter
        x = tf.nn.max_pool2d(x, 2, 2, padding="SAME")
        x = tf.nn.relu(x + w[f"{layer}/biases"])
    x = tf.reshape(x, (-1, w["dense/weights"].shape[1]))
    x = tf.matmul(x, w["dense/weights"], transpose_b=True)
    x = tf.nn.relu(x + w["dense/biases"])
    if kept is not None:
        x *= tf.cast(kept, dtype)
    return tf.cast(x @ w["output/weights"] + w["output/biases"], tf.float32)


def dropout_mask(arguments: argparse.Namespace, step: tf.Tensor) -> tf.Tensor:
    """Multipliers (batch, dense): 1 / keep with probability keep, else 0; from (seed, step)."""
    noise = tf.random.stateless_uniform(
        (arguments.batch, arguments.dense), seed=(arguments.seed, step), alg="philox"
    )
    return tf.where(noise < arguments.keep, 1.0 / arguments.keep, 0.0)


def apply(
    arguments: argparse.Namespace, state: Variables, gradients: Tensors, step: tf.Tensor, _: int
) -> None:
    """One Adam step (Kingma and Ba 2015, the efficient order of section 2), a fused op a weight.

    step: steps done before this one; the powers of the betas follow from it, so they need no slot.
    """
    count = tf.cast(step + 1, tf.float32)
    powers = {"beta1": arguments.beta1**count, "beta2": arguments.beta2**count}
    for name, gradient in gradients.items():
        tf.raw_ops.ResourceApplyAdam(
            var=state[name].handle,
            m=state[f"{name}/adam_m"].handle,
            v=state[f"{name}/adam_v"].handle,
            beta1_power=powers["beta1"],
            beta2_power=powers["beta2"],
            lr=arguments.learning_rate,
            beta1=arguments.beta1,
            beta2=arguments.beta2,
            epsilon=arguments.epsilon,
            grad=gradient,
        )


def penalty(arguments: argparse.Namespace, state: Variables) -> float:
    """What the loss holds beside the cross-entropy: nothing."""
    return 0.0


def evaluated(state: Variables) -> Variables:
    """The weights that accuracies are measured with."""
    return state
