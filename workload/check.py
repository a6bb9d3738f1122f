"""Looks at the staged data set before a GPU is taken: no TensorFlow, no training."""

from __future__ import annotations

from workload import data, pictures
from workload.errors import FINISHED
from workload.folders import folders


def check(classes: int) -> int:
    """Prints what is there, or raises DataError with the one line that says what is wrong.

    Of pictures the first bytes are looked at; whether each decodes is seen when training starts.
    """
    folder = folders().input
    root = data.descend(folder)
    if data.is_pictures(root):
        found = pictures.look(root, classes)
        said = f"{len(found.train)} training and {len(found.test)} test pictures"
        print(f"{folder}: {said}, {len(found.names)} classes: {', '.join(found.names)}")
    else:
        print(f"{folder}: {data.summary(data.load(folder, classes))}")
    return FINISHED
