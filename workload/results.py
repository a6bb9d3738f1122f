"""The end of a run in figures: result.json, and the line that sums it up."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workload import checkpoint, flags
from workload.evaluate import confusion
from workload.progress import duration

if TYPE_CHECKING:
    from workload.run import Run

SCHEMA = 1
MISREAD_SHOWN = 40


def versions() -> dict[str, str]:
    """Of what decides the bits."""
    import tensorflow as tf

    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
    }


def result(run: Run, predicted: np.ndarray) -> dict[str, Any]:
    """The content of result.json; `predicted` are the classes of all test images."""
    test, state = run.dataset.test, run.loop.snapshot()
    wrong = np.flatnonzero(predicted != test.labels)
    now = time.time()
    return {
        "schema": SCHEMA,
        "model": run.arguments.model,
        "step": run.step,
        "steps": run.arguments.steps,
        "loss": run.progress.state["loss"],
        "test_accuracy": float(np.mean(predicted == test.labels)),
        "test_images": len(predicted),
        "validation_accuracy": run.progress.state["validation_accuracy"],
        "best": run.best,
        "wall_seconds": round(now - run.progress.began, 3),
        "training_seconds": round(run.trained_seconds, 3),
        "first_step_seconds": run.progress.state["first_step_seconds"],
        "steps_per_second": run.progress.state["steps_per_second"],
        "finished": round(now, 3),
        "device": run.device,
        "versions": versions(),
        "arguments": flags.recipe(run.arguments),
        "weights_sha256": checkpoint.digest({n: state[n] for n in run.loop.names}),
        "state_sha256": checkpoint.digest(state),
        "confusion": confusion(test.labels, predicted, run.dataset.classes).tolist(),
        "class_names": list(run.dataset.names),
        "misread": [
            {"index": int(i), "label": int(test.labels[i]), "predicted": int(predicted[i])}
            for i in wrong[:MISREAD_SHOWN]
        ],
        "misread_total": len(wrong),
    }


def text(found: dict[str, Any]) -> str:
    """result.json as it is written."""
    return json.dumps(found, indent=1) + "\n"


def read(output: Path) -> dict[str, Any]:
    """The result.json in `output`, or {} where there is none that can be read."""
    try:
        content = json.loads((output / "result.json").read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def line(found: dict[str, Any]) -> str:
    """`finished: 98.12 % of 10000 test images right after 2000 steps in 1 min 2 s`"""
    return (
        f"finished: {100 * found['test_accuracy']:.2f} % of {found['test_images']} test images "
        f"right after {found['step']} steps in {duration(found['wall_seconds'])}"
    )
