"""Measures: predictions over a set of images, and the test accuracy of one checkpoint."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workload import checkpoint, data, device
from workload.errors import DataError
from workload.folders import folders

if TYPE_CHECKING:
    from workload.loop import Loop

AT_ONCE = 500  # images in one forward pass: bounded memory, and quick to interrupt


def predict(
    loop: Loop, images: np.ndarray, rows: np.ndarray | None = None, stop: Any = None
) -> np.ndarray:
    """The predicted class (int32) of each image, or of each of those at `rows`.

    stop: has a `check` method that may raise between two forward passes.
    """
    count = len(images) if rows is None else len(rows)
    parts = []
    for start in range(0, count, AT_ONCE):
        if stop:
            stop.check()
        chosen = slice(start, start + AT_ONCE)
        batch = images[chosen] if rows is None else images[np.asarray(rows[chosen])]
        parts.append(loop.predict(np.ascontiguousarray(batch)).numpy())
    return np.concatenate(parts)


def confusion(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Counts of shape (classes, classes): row = true class, column = predicted class."""
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (labels, predicted), 1)
    return table


def evaluate(folder: Path, as_json: bool, device_choice: str = "auto") -> int:
    """Prints the accuracy of the checkpoint in `folder` on the test images of GPUBOX_INPUT."""
    tensors, meta = checkpoint.read(folder)
    arguments = argparse.Namespace(model=meta["model"], xla=False, **meta["arguments"])
    threads = meta["threads"]
    used = device.open_device(
        device_choice, threads["intra_threads"], threads["inter_threads"], "auto"
    )
    dataset = data.load(folders().input, arguments.classes, arguments.image_size)
    if list(dataset.image_shape) != meta["image_shape"] or dataset.classes > meta["classes"]:
        raise DataError(
            f"{folders().input}: images of {dataset.image_shape} in {dataset.classes} classes, "
            f"but {folder} was trained on {tuple(meta['image_shape'])} in {meta['classes']}"
        )
    from workload.loop import Loop

    loop = Loop(arguments, dataset.image_shape, meta["classes"], 1.0)
    loop.restore(tensors)
    predicted = predict(loop, dataset.test.images)
    found = {
        "schema": 1,
        "checkpoint": str(folder),
        "model": meta["model"],
        "step": meta["step"],
        "test_accuracy": float(np.mean(predicted == dataset.test.labels)),
        "test_images": len(predicted),
        "device": used["kind"],
        "state_sha256": meta["state_sha256"],
    }
    if as_json:
        print(json.dumps(found))
    else:
        print(
            f"{folder.name}: step {meta['step']}, {100 * found['test_accuracy']:.2f} % of "
            f"{len(predicted)} test images right"
        )
    return 0
