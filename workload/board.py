"""Writes TensorBoard's event files: scalars with their true times, the graph, misread images."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# The messages alone: tf.compat.v1, which names them, is a third of TensorFlow's modules.
from tensorflow.core.framework.summary_pb2 import Summary
from tensorflow.core.util.event_pb2 import Event, SessionLog

from workload.data import Dataset

MISREAD_SHOWN = 12
SMALL = 1 << 20  # bytes of a graph; a larger one would hold somebody's constants, not structure


class Board:
    """One event file a start. It begins by telling TensorBoard to forget what lies past `step`.

    The file is a TFRecord of Event messages, which is all that TensorBoard reads; so times and
    steps are ours to set, and nothing beyond TensorFlow is needed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        path = folder / f"events.out.tfevents.{int(now)}.{os.uname().nodename}.{os.getpid()}"
        self._file = tf.io.TFRecordWriter(str(path))
        self._write(Event(wall_time=now, file_version="brain.Event:2"))
        start = SessionLog(status=SessionLog.START)
        self._write(Event(wall_time=now, step=step + 1, session_log=start))

    def scalars(self, row: dict[str, Any]) -> None:
        """Every number in a row of metrics.jsonl, at its step and time."""
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if name not in ("step", "time", "seconds") and value is not None
        ]
        self._write(Event(wall_time=row["time"], step=row["step"], summary=Summary(value=values)))

    def graph(self, function: Any) -> None:
        """The graph of a concrete function."""
        definition = function.graph.as_graph_def().SerializeToString()
        if len(definition) <= SMALL:
            self._write(Event(wall_time=time.time(), graph_def=definition))

    def misread(self, data: Dataset, predicted: np.ndarray, step: int) -> None:
        """The first few test images that were taken for something else."""
        test = data.test
        for i in np.flatnonzero(predicted != test.labels)[:MISREAD_SHOWN]:
            tag = f"misread/{i}: {data.names[test.labels[i]]} taken for {data.names[predicted[i]]}"
            height, width, channels = data.image_shape
            image = Summary.Image(
                height=height, width=width, colorspace=channels, encoded_image_string=png(test, i)
            )
            value = Summary(value=[Summary.Value(tag=tag, image=image)])
            self._write(Event(wall_time=time.time(), step=step, summary=value))

    def _write(self, event: Any) -> None:
        self._file.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._file.close()


def png(part: Any, index: int) -> bytes:
    """One image of a part as a PNG file; floats are stretched to 0..255."""
    image = np.asarray(part.images[index])
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = np.uint8(255 * (image - low) / (high - low or 1.0))
    return bytes(tf.io.encode_png(image).numpy())
