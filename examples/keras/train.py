"""A training program of one's own, with nothing of gpubox in it: Keras `fit`, and two callbacks.

It fits the kit by convention alone: it reads $GPUBOX_INPUT, publishes each epoch as a folder
$GPUBOX_OUTPUT/checkpoints/step_%08d by a rename, resumes from the newest one, and at SIGTERM
saves and exits with 75.
"""

import argparse
import hashlib
import os
import shutil
import signal
import sys
from pathlib import Path

import keras
import numpy as np

INPUT = Path(os.environ.get("GPUBOX_INPUT", "input"))
CHECKPOINTS = Path(os.environ.get("GPUBOX_OUTPUT", "output")) / "checkpoints"
UNFINISHED = CHECKPOINTS / ".unfinished"
EX_TEMPFAIL = 75  # "stopped on purpose, start me again"


def load(part):
    """Images of shape (n, height, width, 1) scaled to 0..1, and labels."""
    images = np.fromfile(next(INPUT.glob(f"{part}-images*")), np.uint8)
    labels = np.fromfile(next(INPUT.glob(f"{part}-labels*")), np.uint8)[8:]
    height, width = images[8:16].view(">u4")
    return images[16:].reshape(-1, height, width, 1) / np.float32(255), labels


class Publish(keras.callbacks.Callback):
    """After ModelCheckpoint wrote UNFINISHED/model.keras: checksums, then the rename."""

    def on_epoch_end(self, epoch, logs=None):
        target = CHECKPOINTS / f"step_{epoch + 1:08d}"
        sums = hashlib.sha256((UNFINISHED / "model.keras").read_bytes()).hexdigest()
        (UNFINISHED / "SHA256SUMS").write_text(f"{sums}  model.keras\n")
        for path in UNFINISHED.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(target, ignore_errors=True)
        UNFINISHED.rename(target)
        UNFINISHED.mkdir()
        print(f"published {target.name}: {logs}", flush=True)


class Stop(keras.callbacks.Callback):
    """Ends the training after the epoch in which SIGTERM came."""

    def __init__(self):
        super().__init__()
        self.asked = False
        signal.signal(signal.SIGTERM, self.ask)

    def ask(self, *_):
        self.asked = True

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = self.asked


def newest():
    """(model, epochs done) of the newest published checkpoint, or (None, 0)."""
    found = sorted(CHECKPOINTS.glob("step_????????"))
    if not found:
        return None, 0
    return keras.models.load_model(found[-1] / "model.keras"), int(found[-1].name[5:])


def fresh(shape, classes):
    """A small dense net."""
    layers = [keras.layers.Input(shape), keras.layers.Flatten()]
    layers += [keras.layers.Dense(128, "relu"), keras.layers.Dense(classes)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    shutil.rmtree(UNFINISHED, ignore_errors=True)
    UNFINISHED.mkdir(parents=True)
    images, labels = load("train")
    model, done = newest()
    model = model or fresh(images.shape[1:], int(labels.max()) + 1)
    print(f"starting after {done} epochs", flush=True)
    stop = Stop()
    save = keras.callbacks.ModelCheckpoint(UNFINISHED / "model.keras")
    model.fit(
        images,
        labels,
        batch_size=100,
        initial_epoch=done,
        epochs=arguments.epochs,
        verbose=0,
        callbacks=[save, Publish(), stop],
    )
    if stop.asked:
        return EX_TEMPFAIL
    loss, accuracy = model.evaluate(*load("t10k"), verbose=0)
    print(f"test accuracy {accuracy:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
