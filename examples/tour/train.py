"""A program of your own, as one writes it with Keras, and what makes it fit the kit.

It reads pictures from $GPUBOX_INPUT, a folder for each class, and writes under $GPUBOX_OUTPUT.
Started again by the same command it goes on from its newest checkpoint. On SIGTERM it saves and
exits with 75.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import tensorflow as tf

INPUT = os.environ.get("GPUBOX_INPUT", "/input")
OUTPUT = Path(os.environ.get("GPUBOX_OUTPUT", "/output"))
CHECKPOINTS = OUTPUT / "checkpoints"
EPOCHS, INTERRUPTED = int(os.environ.get("EPOCHS", "20")), 75
started = time.time()


def pictures(part):
    """Four fifths to train on, one to test with: the same ones in every start."""
    return tf.keras.utils.image_dataset_from_directory(
        INPUT, image_size=(24, 24), color_mode="grayscale", batch_size=30, seed=1,
        validation_split=0.2, subset=part,
    )  # fmt: skip


def new_model():
    return tf.keras.Sequential([
        tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Conv2D(16, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(), tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(), tf.keras.layers.Flatten(), tf.keras.layers.Dense(3),
    ])  # fmt: skip


def write(path, text):
    """Whole or not at all: under another name first."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


class Kit(tf.keras.callbacks.Callback):
    """A sign of life every second; after each epoch a checkpoint and a row of metrics."""

    stopped, epoch, told = False, 0, 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        batches = self.params["steps"]
        if time.time() - self.told > 1:
            self.told = time.time()
            progress = {"schema": 1, "step": self.epoch * batches + batch + 1}
            progress |= {"steps": EPOCHS * batches, "loss": logs["loss"]}
            write(OUTPUT / "progress.json", json.dumps(progress))
        if self.stopped:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.stopped:
            return  # half an epoch: the checkpoint before it is the one to go on from
        step = (epoch + 1) * self.params["steps"]
        part = CHECKPOINTS / ".part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        self.model.save(part / "model.keras")
        digest = hashlib.sha256((part / "model.keras").read_bytes()).hexdigest()
        (part / "SHA256SUMS").write_text(f"{digest}  model.keras\n")
        final = CHECKPOINTS / f"step_{step:08d}"
        shutil.rmtree(final, ignore_errors=True)
        os.sync()
        part.rename(final)
        write(CHECKPOINTS / "LATEST", final.name + "\n")
        row = {"step": step, "time": time.time(), "seconds": time.time() - started, **logs}
        with open(OUTPUT / "metrics.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")


def main():
    kit = Kit()
    signal.signal(signal.SIGTERM, lambda *_: setattr(kit, "stopped", True))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    train, test = pictures("training"), pictures("validation")
    done = sorted(CHECKPOINTS.glob("step_*"))
    if done:
        model = tf.keras.models.load_model(done[-1] / "model.keras")
        epoch = int(done[-1].name[5:]) // len(train)
        print(f"going on after epoch {epoch}", flush=True)
    else:
        model, epoch = new_model(), 0
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    model.fit(
        train, validation_data=test, initial_epoch=epoch, epochs=EPOCHS, callbacks=[kit], verbose=2
    )
    if kit.stopped:
        sys.exit(INTERRUPTED)
    loss, right = model.evaluate(test, verbose=0)
    result = {"schema": 1, "step": EPOCHS * len(train), "loss": loss, "test_accuracy": right}
    write(OUTPUT / "result.json", json.dumps(result))
    print(f"finished: {100 * right:.1f} % of the pictures told apart", flush=True)


if __name__ == "__main__":
    main()
