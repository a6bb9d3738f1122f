"""A program of your own on several boxes: TensorFlow's MultiWorkerMirroredStrategy, a custom loop.

The kit sets TF_CONFIG (who the workers are, which one this is), GPUBOX_INPUT and GPUBOX_OUTPUT.
Every worker has an output folder of its own; only the chief (worker 0) keeps checkpoints there.

Without TF_CONFIG the same program trains alone: the same batches, the same steps, the same curve.

    python train.py --steps 600
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

INPUT = Path(os.environ.get("GPUBOX_INPUT", "/input"))
OUTPUT = Path(os.environ.get("GPUBOX_OUTPUT", "/output"))
CHECKPOINTS = OUTPUT / "checkpoints"
INTERRUPTED = 75


def read_images(part):
    """MNIST's images as floats in 0..1 [n, 784] and labels [n]."""
    images = np.fromfile(INPUT / f"{part}-images-idx3-ubyte", np.uint8, offset=16)
    labels = np.fromfile(INPUT / f"{part}-labels-idx1-ubyte", np.uint8, offset=8)
    return np.float32(images.reshape(len(labels), -1)) / 255, np.int32(labels)


def make_variables(step, saved):
    """A small net and its step: new ones the same everywhere because of the seeds, or `saved`.

    Made in a strategy's scope, a variable begins on every worker with the chief's value: that is
    how the others come by a checkpoint which only the chief has.
    """
    shapes = {"w1": (784, 64), "b1": (64,), "w2": (64, 10), "b2": (10,)}
    values = {
        name: saved[name] if saved else 0.1 * np.random.default_rng(i).standard_normal(shape)
        for i, (name, shape) in enumerate(shapes.items())
    }
    net = {name: tf.Variable(np.float32(value), name=name) for name, value in values.items()}
    return tf.Variable(step, dtype=tf.int64), net


def loss_of(variables, images, labels):
    """The sum (not the mean) of the losses: each worker has its part of the batch."""
    hidden = tf.nn.relu(images @ variables["w1"] + variables["b1"])
    logits = hidden @ variables["w2"] + variables["b2"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_sum(losses), logits


def save(variables, step, keep=2):
    """A folder that is renamed into place when it is whole: nobody ever sees half of one."""
    part, final = CHECKPOINTS / ".part", CHECKPOINTS / f"step_{step:08d}"
    if final.exists():
        return
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    np.savez(part / "variables.npz", **{name: v.numpy() for name, v in variables.items()})
    digest = hashlib.sha256((part / "variables.npz").read_bytes()).hexdigest()
    (part / "SHA256SUMS").write_text(f"{digest}  variables.npz\n")
    os.sync()
    part.rename(final)
    write(CHECKPOINTS / "LATEST", final.name + "\n")
    for old in sorted(CHECKPOINTS.glob("step_*"))[:-keep]:
        shutil.rmtree(old)


def newest():
    """(step, values) of the newest checkpoint; (0, None) without one."""
    for folder in sorted(CHECKPOINTS.glob("step_*"), reverse=True):
        digest = (folder / "SHA256SUMS").read_text().split()[0]
        if hashlib.sha256((folder / "variables.npz").read_bytes()).hexdigest() == digest:
            return int(folder.name[5:]), dict(np.load(folder / "variables.npz"))
    return 0, None


def write(path, text):
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=120, help="images in a step, of all workers")
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after a step (for tests)")
    arguments = parser.parse_args()

    several = json.loads(os.environ.get("TF_CONFIG", "{}"))
    index = several["task"]["index"] if several else 0
    workers = len(several["cluster"]["worker"]) if several else 1
    chief = index == 0
    if arguments.batch % workers:
        sys.exit(f"--batch {arguments.batch} can't be divided by {workers} workers")
    # first of all, as TensorFlow wants it: it waits here until every worker is there
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    )
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))

    images, labels = read_images("train")
    with strategy.scope():
        start, variables = make_variables(*(newest() if chief else (0, None)))
    step = int(start.numpy())

    @tf.function
    def train(images, labels):
        def one(images, labels):
            with tf.GradientTape() as tape:
                loss, _ = loss_of(variables, images, labels)
            gradients = tape.gradient(loss, list(variables.values()))
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            for variable, gradient in zip(variables.values(), gradients, strict=True):
                variable.assign_sub(0.3 / arguments.batch * gradient)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, loss)

        loss = strategy.run(one, args=(images, labels))
        return strategy.experimental_local_results(loss)[0] / arguments.batch

    share = arguments.batch // workers
    OUTPUT.mkdir(parents=True, exist_ok=True)
    print(f"worker {index} of {workers}: from step {step}", flush=True)
    began = told_at = time.time()
    while step < arguments.steps and not stop:
        rows = np.random.default_rng([7, step]).integers(0, len(labels), arguments.batch)
        mine = rows[index * share : (index + 1) * share]
        loss = train(tf.constant(images[mine]), tf.constant(labels[mine]))
        step += 1
        if chief and step % 10 == 0:
            with open(OUTPUT / "metrics.jsonl", "a") as file:
                file.write(
                    json.dumps({"step": step, "time": time.time(), "loss": float(loss)}) + "\n"
                )
        if time.time() - told_at > 1 or step == arguments.steps or began == told_at:
            told_at = time.time()
            progress = {"schema": 1, "step": step, "steps": arguments.steps, "loss": float(loss)}
            write(OUTPUT / "progress.json", json.dumps(progress))
        if chief and step % arguments.save_every == 0:
            save(variables, step)
        time.sleep(arguments.pause)
    if chief:
        save(variables, step)
    if step < arguments.steps:
        sys.exit(INTERRUPTED)
    if chief:
        test_images, test_labels = read_images("t10k")
        _, logits = loss_of(variables, test_images, test_labels)
        right = float(np.mean(np.argmax(logits.numpy(), 1) == test_labels))
        result = {"schema": 1, "step": step, "test_accuracy": right, "loss": float(loss)}
        write(OUTPUT / "result.json", json.dumps(result))
        print(f"finished: {100 * right:.2f} % of the test images right", flush=True)


if __name__ == "__main__":
    main()
