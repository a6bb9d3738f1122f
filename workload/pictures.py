"""Class folders of PNG and JPEG files as a data set: cat/1.png, dog/2.jpg, …, or train/ and test/."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workload.data import Dataset, Part
from workload.errors import DataError
from workload.order import hold_out_share

MAGIC = {".png": (b"\x89PNG\r\n\x1a\n",), ".jpg": (b"\xff\xd8\xff",), ".jpeg": (b"\xff\xd8\xff",)}
TEST_SHARE, TEST_SEED = 0.1, 7  # where there is no test folder
AT_ONCE = 64
IN_MEMORY = 1 << 30  # bytes; a larger set is decoded into a file on the scratch disk


class Found(NamedTuple):
    """Paths and labels of both parts, and the classes' names."""

    train: list[tuple[Path, int]]
    test: list[tuple[Path, int]]
    names: tuple[str, ...]


def class_folders(root: Path) -> list[Path]:
    """The folders in `root` that hold pictures, by name."""
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    return [p for p in folders if any(q.suffix.lower() in MAGIC for q in p.iterdir())]


def looks_like(root: Path) -> bool:
    """Whether `root` holds class folders, or a train folder of them."""
    inner = root / "train"
    return len(class_folders(inner if inner.is_dir() else root)) > 0


def look(root: Path, classes: int = 0) -> Found:
    """Every picture's path and label, its first bytes checked; DataError names a bad one."""
    inner = root / "train"
    base = inner if inner.is_dir() else root
    names = tuple(p.name for p in class_folders(base))
    if len(names) < 2:
        raise DataError(f"{base}: only the class {names[0]}; there is nothing to tell apart")
    if classes and classes != len(names):
        raise DataError(f"{base}: {len(names)} class folders, but --classes is {classes}")
    train = _files(base, names)
    tests = [root / name for name in ("test", "val", "validation") if (root / name).is_dir()]
    if base is inner and tests:
        for folder in class_folders(tests[0]):
            if folder.name not in names:
                raise DataError(f"{folder}: a class that {base} does not have")
        return Found(train, _files(tests[0], names), names)
    kept, held = hold_out_share(len(train), TEST_SHARE, TEST_SEED)
    return Found([train[i] for i in sorted(kept)], [train[i] for i in sorted(held)], names)


def _files(base: Path, names: tuple[str, ...]) -> list[tuple[Path, int]]:
    found = []
    for label, name in enumerate(names):
        folder = base / name
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        for path in files:
            magics = MAGIC.get(path.suffix.lower())
            if magics is None:
                continue
            with open(path, "rb") as file:
                start = file.read(8)
            if not start.startswith(magics):
                kind = "a web page" if start.lstrip()[:1] == b"<" else "not a PNG or JPEG file"
                raise DataError(f"{path}: is {kind}; upload it again or remove it")
            found.append((path, label))
    if not found:
        raise DataError(f"{base}: no pictures in its class folders; upload them again")
    return found


def load(root: Path, classes: int, size: int, scratch: Path | None) -> Dataset:
    """Decodes every picture once, by tf.data, to bytes of one size (see `look` for errors)."""
    found = look(root, classes)
    shape = _shape(found.train[0][0], size)
    train, test = (_decode(each, shape, scratch) for each in (found.train, found.test))
    return Dataset(train, test, len(found.names), found.names)


def _shape(first: Path, size: int) -> tuple[int, int, int]:
    import tensorflow as tf

    try:
        height, width, channels = tf.io.decode_image(
            first.read_bytes(), expand_animations=False
        ).shape
    except tf.errors.InvalidArgumentError as error:
        raise DataError(f"{first}: can't be decoded; upload it again or remove it") from error
    side = (size, size) if size else (int(height), int(width))
    return (*side, 3 if channels >= 3 else 1)


def _decode(
    files: list[tuple[Path, int]], shape: tuple[int, int, int], scratch: Path | None
) -> Part:
    import tensorflow as tf

    height, width, channels = shape

    def picture(path: Any) -> Any:
        image = tf.io.decode_image(tf.io.read_file(path), channels, expand_animations=False)
        image = tf.image.resize(tf.cast(image, tf.float32), (height, width), antialias=True)
        return tf.cast(tf.round(tf.clip_by_value(image, 0, 255)), tf.uint8)

    images = _room((len(files), *shape), scratch)
    paths = tf.data.Dataset.from_tensor_slices([str(path) for path, _ in files])
    batches = paths.map(picture, tf.data.AUTOTUNE).batch(AT_ONCE).prefetch(2)
    done = 0
    try:
        for batch in batches.as_numpy_iterator():
            images[done : done + len(batch)] = batch
            done += len(batch)
    except tf.errors.InvalidArgumentError as error:
        bad = _first_bad(files[done : done + 4 * AT_ONCE], picture)
        raise DataError(f"{bad}: can't be decoded; upload it again or remove it") from error
    return Part(images, np.array([label for _, label in files], np.int32))


def _room(shape: tuple[int, ...], scratch: Path | None) -> np.ndarray:
    if scratch is None or int(np.prod(shape)) <= IN_MEMORY:
        return np.empty(shape, np.uint8)
    with tempfile.NamedTemporaryFile(prefix="pictures-", dir=scratch) as file:
        return np.memmap(file, np.uint8, "w+", shape=shape)  # the name goes, the mapping stays


def _first_bad(files: list[tuple[Path, int]], picture: Any) -> Path:
    import tensorflow as tf

    for path, _ in files:
        try:
            picture(str(path))
        except tf.errors.InvalidArgumentError:
            return path
    return files[0][0]
