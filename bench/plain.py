"""The two programs as they are usually written: TensorFlow-1 graphs, placeholders, fed batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def weights(shape: tuple[int, ...]) -> Any:
    """A weight as these programs make it."""
    return v1.Variable(tf.random.truncated_normal(shape, stddev=0.1))


def biases(count: int) -> Any:
    """A bias as these programs make it."""
    return v1.Variable(tf.constant(0.1, shape=[count]))


def cnn() -> tuple[Any, ...]:
    """(x, y, train operation, scores, dropout's kept share) of the convolutional net."""
    x = v1.placeholder(tf.float32, [None, 784])
    y = v1.placeholder(tf.int64, [None])
    keep = v1.placeholder_with_default(tf.constant(1.0), [])
    h = tf.reshape(x, [-1, 28, 28, 1])
    for before, after in ((1, 32), (32, 64)):
        h = tf.nn.relu(tf.nn.conv2d(h, weights((5, 5, before, after)), 1, "SAME") + biases(after))
        h = tf.nn.max_pool2d(h, 2, 2, "SAME")
    h = tf.reshape(h, [-1, 7 * 7 * 64])
    h = tf.nn.relu(tf.matmul(h, weights((7 * 7 * 64, 1024))) + biases(1024))
    h = v1.nn.dropout(h, keep_prob=keep)
    scores = tf.matmul(h, weights((1024, 10))) + biases(10)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=scores))
    return x, y, v1.train.AdamOptimizer(1e-4).minimize(loss), scores, {keep: 0.5}


def bp() -> tuple[Any, ...]:
    """(x, y, train operation, scores of the averaged weights, nothing) of the BP network."""
    x = v1.placeholder(tf.float32, [None, 784])
    y = v1.placeholder(tf.int64, [None])
    w1, b1, w2, b2 = weights((784, 500)), biases(500), weights((500, 10)), biases(10)
    scores = tf.matmul(tf.nn.relu(tf.matmul(x, w1) + b1), w2) + b2
    step = v1.Variable(0, trainable=False)
    averages = v1.train.ExponentialMovingAverage(0.99, step)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=scores))
    loss += 0.01 * tf.nn.l2_loss(w1) + 0.01 * tf.nn.l2_loss(w2)
    rate = v1.train.exponential_decay(0.005, step, 270, 0.99)
    descend = v1.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
    with tf.control_dependencies([descend]):
        train = averages.apply([w1, b1, w2, b2])
    a1, c1, a2, c2 = (averages.average(each) for each in (w1, b1, w2, b2))
    averaged = tf.matmul(tf.nn.relu(tf.matmul(x, a1) + c1), a2) + c2
    return x, y, train, averaged, {}


class Plain:
    """One of the two in a session of its own; `steps(k)` trains k fed batches."""

    def __init__(
        self, program: str, images: np.ndarray, labels: np.ndarray, threads: int, seed: int = 1
    ) -> None:
        self.divided = program == "cnn"
        self.images = self._scaled(images)
        self.labels, self.batch = labels.astype(np.int64), 50 if program == "cnn" else 200
        self.random, self.at = np.random.default_rng(seed), 0
        with tf.Graph().as_default():
            v1.set_random_seed(seed)
            made = cnn() if program == "cnn" else bp()
            self.x, self.y, self.train, self.scores, self.extra = made
            config = v1.ConfigProto(
                intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
            )
            self.session = v1.Session(config=config)
            self.session.run(v1.global_variables_initializer())

    def steps(self, count: int) -> None:
        """Trains `count` batches in shuffled order, as DataSet.next_batch did."""
        for _ in range(count):
            if self.at + self.batch > len(self.images) or self.at == 0:
                order = self.random.permutation(len(self.images))
                self.images, self.labels = self.images[order], self.labels[order]
                self.at = 0
            part = slice(self.at, self.at + self.batch)
            self.at += self.batch
            feed = {self.x: self.images[part], self.y: self.labels[part], **self.extra}
            self.session.run(self.train, feed)

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of the images that the net as it is now reads right."""
        right = 0
        for at in range(0, len(images), 1000):
            scores = self.session.run(self.scores, {self.x: self._scaled(images[at : at + 1000])})
            right += int((scores.argmax(1) == labels[at : at + 1000]).sum())
        return right / len(images)

    def _scaled(self, images: np.ndarray) -> np.ndarray:
        pixels = images.reshape(len(images), -1).astype(np.float32)
        if self.divided:
            pixels /= 255.0
        return pixels
