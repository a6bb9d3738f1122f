"""The compiled part: k training steps in one call, and the forward pass that measures accuracy."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from workload import bp, cnn

PROGRAMS: dict[str, ModuleType] = {"cnn": cnn, "bp": bp}
FLOAT16_LOSS_SCALE = 1024.0  # keeps small gradients above float16's smallest number


class Loop:
    """A program's variables, and the two compiled functions over them.

    epoch: steps in an epoch. strategy: None, or one of tf.distribute's with its scope's replicas.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        shape: tuple[int, int, int],
        classes: int,
        epoch: float,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        self.arguments, self.epoch, self.strategy = arguments, epoch, strategy
        self.program = PROGRAMS[arguments.model]
        self.dtype = tf.as_dtype(arguments.precision)
        self._penalty = tf.autograph.experimental.do_not_convert(self.program.penalty)
        self.replicas = strategy.num_replicas_in_sync if strategy else 1
        weights = self.program.initial(arguments, shape, classes)
        self.names = list(weights)
        values = {**weights, **self.program.slots(weights, arguments)}
        if strategy:
            with strategy.scope():
                self.state = _variables(values)
        else:
            self.state = _variables(values)
        self.train = tf.function(self._train, reduce_retracing=True)
        self.predict = tf.function(self._predict, autograph=False, reduce_retracing=True)
        plain = tf.autograph.experimental.do_not_convert(self._step)
        self._body = tf.function(plain, jit_compile=True) if arguments.xla else plain

    def _train(
        self, images: tf.Tensor, labels: tf.Tensor, rows: tf.Tensor, first: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Trains one step for each row of `rows`, which holds positions in `images`.

        images: (n, height, width, channels); labels: (n,); rows: (k, batch); first: number of the
        first of these steps. Returns the last step's loss, and whether all losses and weights
        are finite.
        """
        loss, finite = tf.constant(0.0), tf.constant(True)
        for i in tf.range(tf.shape(rows)[0]):
            batch = tf.gather(images, rows[i]), tf.gather(labels, rows[i])
            if self.strategy is None:
                loss = self._body(*batch, first + i)
            else:
                parts = self.strategy.run(self._body, args=(*batch, first + i))
                loss = self.strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)
            finite = tf.logical_and(finite, tf.math.is_finite(loss))
        for variable in self.state.values():
            # a relu can swallow a NaN on its way to the loss, so the weights are looked at as well
            finite = tf.logical_and(finite, tf.math.is_finite(tf.reduce_sum(variable)))
        return loss + self._penalty(self.arguments, self.state), finite

    def _step(self, images: tf.Tensor, labels: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """One step on a global batch; returns this replica's share of the mean cross-entropy."""
        kept = self.program.dropout_mask(self.arguments, step)
        if self.replicas > 1:
            images, labels, kept = self._own_share(images, labels, kept)
        weights = {name: self.state[name] for name in self.names}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(weights.values()))
            scores = self.program.logits(weights, self._scaled(images), self.dtype, kept)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_sum(losses) / self.arguments.batch
            target = loss * FLOAT16_LOSS_SCALE if self.dtype == tf.float16 else loss
        gradients = tape.gradient(target, weights)
        if self.dtype == tf.float16:
            gradients = {n: g / FLOAT16_LOSS_SCALE for n, g in gradients.items()}
        if self.replicas > 1:
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        self.program.apply(self.arguments, self.state, gradients, step, self.epoch)
        return loss

    def _own_share(self, *tensors: tf.Tensor | None) -> list[tf.Tensor | None]:
        share = self.arguments.batch // self.replicas
        context = tf.distribute.get_replica_context()
        start = context.replica_id_in_sync_group * share
        return [None if t is None else t[start : start + share] for t in tensors]

    def _predict(self, images: tf.Tensor) -> tf.Tensor:
        """The class of each of `images` (n, height, width, channels), by the measured weights."""
        weights = self.program.evaluated(self.state)
        scores = self.program.logits(weights, self._scaled(images), self.dtype)
        return tf.argmax(scores, axis=1, output_type=tf.int32)

    def _scaled(self, images: tf.Tensor) -> tf.Tensor:
        pixels = tf.cast(images, tf.float32)
        scale = self.arguments.pixel_scale
        return pixels if scale == 1.0 else pixels / scale

    def snapshot(self) -> dict[str, np.ndarray]:
        """A copy of every variable in the host's memory."""
        return {name: variable.numpy() for name, variable in self.state.items()}

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        """Sets every variable from a snapshot; ValueError where names or shapes differ."""
        if set(tensors) != set(self.state):
            raise ValueError("other tensors than this program's")
        for name, variable in self.state.items():
            variable.assign(tensors[name])


def _variables(values: dict[str, Any]) -> dict[str, tf.Variable]:
    return {
        name: tf.Variable(
            value,
            name=name.replace("/", "_"),
            synchronization=tf.VariableSynchronization.ON_WRITE,
            aggregation=tf.VariableAggregation.MEAN,
        )
        for name, value in values.items()
    }
