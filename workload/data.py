"""Finds the data set below the input folder and loads it: IDX files, or class folders."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from workload import idx
from workload.errors import DataError

TEST_NAMES = ("t10k", "test")


class Part(NamedTuple):
    """Images (count, height, width, channels), of bytes or floats, and labels (count,) int32."""

    images: np.ndarray
    labels: np.ndarray


class Dataset(NamedTuple):
    """A training and a test part over the same classes 0..classes-1."""

    train: Part
    test: Part
    classes: int
    names: tuple[str, ...]  # of the classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)"""
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels


def load(folder: Path, classes: int = 0, size: int = 0, scratch: Path | None = None) -> Dataset:
    """The data set in `folder`, checked. `classes` 0: as many as the labels say.

    size: side that pictures are scaled to (0: that of the first one); IDX images keep theirs.
    Raises DataError with one line for each kind of damage.
    """
    root = descend(folder)
    if is_idx(root):
        return _load_idx(root, classes)
    from workload import pictures

    if pictures.looks_like(root):
        return pictures.load(root, classes, size, scratch)
    raise DataError(
        f"{folder}: no data set here; expected train-images…, train-labels…, t10k-images… and "
        "t10k-labels… (IDX), or one folder of PNG/JPEG files a class"
    )


def is_idx(root: Path) -> bool:
    """Whether `root` holds IDX files, by their names."""
    return any(root.glob("train-images*")) or any(root.glob("train-labels*"))


def descend(folder: Path) -> Path:
    """`folder`, or the only folder in it, and so on: archives often bring a top folder."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; stage the data set, or set GPUBOX_INPUT")
    inside = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    if not inside:
        raise DataError(f"{folder}: is empty; stage the data set first")
    if len(inside) == 1 and inside[0].is_dir():
        return descend(inside[0])
    return folder


def _load_idx(root: Path, classes: int) -> Dataset:
    train = _load_part(root, ("train",))
    test = _load_part(root, TEST_NAMES)
    if train.images.shape[1:] != test.images.shape[1:]:
        raise DataError(
            f"{root}: training images are {train.images.shape[1:3]}, "
            f"test images {test.images.shape[1:3]}; they must have one size"
        )
    count = check_labels(root, train.labels, test.labels, classes)
    return Dataset(train, test, count, tuple(map(str, range(count))))


def _load_part(root: Path, prefixes: tuple[str, ...]) -> Part:
    images_path, labels_path = _find(root, prefixes, "images"), _find(root, prefixes, "labels")
    images = idx.read(images_path, (3, 4))
    labels = idx.read(labels_path, (1,))
    if len(images) != len(labels):
        raise DataError(
            f"{images_path}: {len(images)} images, but {labels_path.name} has "
            f"{len(labels)} labels; they do not belong together"
        )
    if images.ndim == 3:
        images = images[..., np.newaxis]
    return Part(images, labels.astype(np.int32))


def _find(root: Path, prefixes: tuple[str, ...], kind: str) -> Path:
    found = sorted(p for prefix in prefixes for p in root.glob(f"{prefix}-{kind}*"))
    if not found:
        raise DataError(f"{root}: no {prefixes[0]}-{kind}… file; upload all four IDX files")
    plain = [p for p in found if not p.name.endswith(".gz")]
    if len(plain) > 1 or (not plain and len(found) > 1):
        names = ", ".join(p.name for p in found)
        raise DataError(f"{root}: more than one {prefixes[0]}-{kind} file ({names}); keep one")
    return (plain or found)[0]


def check_labels(root: Path, train: np.ndarray, test: np.ndarray, classes: int) -> int:
    """The number of classes, or DataError where a label lies outside 0..classes-1."""
    lowest, highest = int(train.min()), int(train.max())
    if lowest > 0:
        raise DataError(
            f"{root}: training labels run from {lowest} to {highest}; they must start at 0 "
            f"(subtract {lowest})"
        )
    count = classes or highest + 1
    if count < 2:
        raise DataError(f"{root}: every training label is 0; there is nothing to tell apart")
    for name, labels in (("training", train), ("test", test)):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= count:
            bad = low if low < 0 else high
            raise DataError(
                f"{root}: {name} label {bad} at position {int(np.argmax(labels == bad))} is out "
                f"of range 0..{count - 1} for {count} classes"
            )
    return count


def is_pictures(folder: Path) -> bool:
    """Whether `folder` holds class folders, which only TensorFlow can decode."""
    from workload import pictures

    root = descend(folder)
    return not is_idx(root) and pictures.looks_like(root)


def summary(data: Dataset) -> str:
    """One line for people: what was found."""
    height, width, channels = data.image_shape
    return (
        f"{len(data.train.labels)} training and {len(data.test.labels)} test images, "
        f"{height} x {width} x {channels} {data.train.images.dtype}, {data.classes} classes"
    )
