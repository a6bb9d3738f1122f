"""Reads IDX files (the format of MNIST), and finds what is wrong with one before using it."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from workload.errors import DataError

# Third byte of the magic number: http://yann.lecun.com/exdb/mnist, "the IDX file format".
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_DIMENSIONS = 4
DEFLATE_MAX_RATIO = 1040  # deflate cannot shrink anything further than about 1032 to 1


def read(path: Path, dimensions: tuple[int, ...]) -> np.ndarray:
    """The array in `path`, memory-mapped where the file is not compressed.

    dimensions: how many dimensions are right, such as (1,) for labels.
    Raises DataError, naming the file, before it allocates anything that the header merely claims.
    """
    try:
        if path.name.endswith(".gz"):
            return _read_gzip(path, dimensions)
        with open(path, "rb") as file:
            dtype, shape, start = _header(file, path, dimensions)
        return _map(path, dtype, shape, start)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror or error}") from error


def _header(
    file: BinaryIO, path: Path, dimensions: tuple[int, ...]
) -> tuple[np.dtype, tuple[int, ...], int]:
    magic = file.read(4)
    if not magic:
        raise DataError(f"{path}: is empty; upload it again")
    if magic[:2] == b"\x1f\x8b":
        raise DataError(f"{path}: is still gzipped; unpack it, or name it {path.name}.gz")
    if magic.lstrip()[:1] == b"<":
        raise DataError(f"{path}: is a web page, not data; the download went to a login page")
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES:
        raise DataError(f"{path}: wrong magic number 0x{magic.hex()}; this is not an IDX file")
    count = magic[3]
    if count not in dimensions:
        raise DataError(_wrong_dimensions(path, count, dimensions))
    sizes = file.read(4 * count)
    if len(sizes) < 4 * count:
        raise DataError(f"{path}: is truncated within its header; upload it again")
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
    if 0 in shape:
        raise DataError(f"{path}: holds no items (its header says {_times(shape)})")
    return np.dtype(TYPES[magic[2]]), shape, 4 + 4 * count


def _wrong_dimensions(path: Path, count: int, wanted: tuple[int, ...]) -> str:
    if count == 1:
        return f"{path}: holds labels where images are expected; are the two files swapped?"
    if wanted == (1,) and count <= MAX_DIMENSIONS:
        return f"{path}: holds images where labels are expected; are the two files swapped?"
    return f"{path}: has {count} dimensions, expected {' or '.join(map(str, wanted))}"


def _map(path: Path, dtype: np.dtype, shape: tuple[int, ...], start: int) -> np.ndarray:
    claimed, there = math.prod(shape) * dtype.itemsize, path.stat().st_size - start
    _compare(path, shape, claimed, there)
    return _native(np.memmap(path, dtype, mode="r", offset=start, shape=shape))


def _read_gzip(path: Path, dimensions: tuple[int, ...]) -> np.ndarray:
    try:
        with open(path, "rb") as raw:
            first = raw.read(2)
        if first != b"\x1f\x8b":
            return _not_gzip(path, first)
        with gzip.open(path, "rb") as file:
            dtype, shape, _ = _header(file, path, dimensions)  # type: ignore[arg-type]
            claimed = math.prod(shape) * dtype.itemsize
            if claimed > DEFLATE_MAX_RATIO * path.stat().st_size:
                _compare(path, shape, claimed, DEFLATE_MAX_RATIO * path.stat().st_size)
            body = file.read(claimed + 1)
    except EOFError as error:
        raise DataError(f"{path}: the gzip file is truncated; upload it again") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip file is damaged ({error}); upload it again") from error
    _compare(path, shape, claimed, len(body))
    return _native(np.frombuffer(body, dtype).reshape(shape))


def _not_gzip(path: Path, first: bytes) -> np.ndarray:
    if not first:
        raise DataError(f"{path}: is empty; upload it again")
    if first[:1] == b"<":
        raise DataError(f"{path}: is a web page, not data; the download went to a login page")
    raise DataError(f"{path}: is named .gz but is not gzipped; take .gz off its name")


def _compare(path: Path, shape: tuple[int, ...], claimed: int, there: int) -> None:
    if there < claimed:
        raise DataError(
            f"{path}: is truncated: its header claims {_times(shape)} ({claimed} bytes), "
            f"at most {there} bytes are there; upload it again"
        )
    if there > claimed:
        raise DataError(
            f"{path}: has more bytes than its header claims ({_times(shape)}); upload it again"
        )


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _native(array: np.ndarray) -> np.ndarray:
    """The same numbers in this machine's byte order (a no-op for bytes)."""
    return array if array.dtype.itemsize == 1 else array.astype(array.dtype.newbyteorder("="))
