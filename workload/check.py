"""Looks at the staged data set before a GPU is taken: no TensorFlow, no training."""

from __future__ import annotations

from workload import data
from workload.errors import FINISHED
from workload.folders import folders


def check(classes: int) -> int:
    """Prints what is there, or raises DataError with the one line that says what is wrong."""
    print(f"{folders().input}: {data.summary(data.load(folders().input, classes))}")
    return FINISHED
