"""Each damage to a data set is its own one-line error, found by `check` without TensorFlow."""

import gzip
import struct
import subprocess
import sys

import numpy as np
import pytest

from tests.workload.kit import ROOT, idx_bytes, write_set
from workload import data, idx
from workload.errors import DATA, DataError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def overwrite(folder, name, content):
    (folder / name).write_bytes(content)


def swap(folder):
    a, b = folder / IMAGES, folder / LABELS
    first = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(first)


def truncated_gzip(folder):
    whole = gzip.compress((folder / IMAGES).read_bytes())
    (folder / IMAGES).unlink()
    overwrite(folder, IMAGES + ".gz", whole[: len(whole) // 2])


def damaged_gzip(folder):
    whole = bytearray(gzip.compress((folder / IMAGES).read_bytes()))
    whole[-6] ^= 0xFF  # in the checksum of the content
    (folder / IMAGES).unlink()
    overwrite(folder, IMAGES + ".gz", bytes(whole))


def claims(folder, count):
    body = (folder / IMAGES).read_bytes()
    overwrite(folder, IMAGES, body[:4] + struct.pack(">I", count) + body[8:])


def claims_in_gzip(folder, count):
    body = (folder / IMAGES).read_bytes()
    (folder / IMAGES).unlink()
    overwrite(folder, IMAGES + ".gz", gzip.compress(body[:4] + struct.pack(">I", count) + body[8:]))


def relabel(folder, change, name=LABELS):
    labels = np.frombuffer((folder / name).read_bytes()[8:], np.uint8)
    overwrite(folder, name, idx_bytes(change(labels).astype(np.uint8)))


def remove_all(folder):
    for path in folder.iterdir():
        path.unlink()


DAMAGE = {
    "the folder is empty": (remove_all, "is empty; stage the data set first"),
    "a file is missing": (lambda d: (d / LABELS).unlink(), "no train-labels… file"),
    "an empty file": (lambda d: overwrite(d, IMAGES, b""), "is empty; upload it again"),
    "HTML": (lambda d: overwrite(d, IMAGES, b"<!DOCTYPE html><html>"), "is a web page, not data"),
    "HTML named .gz": (
        lambda d: ((d / IMAGES).unlink(), overwrite(d, IMAGES + ".gz", b"<html></html>")),
        "is a web page, not data",
    ),
    "wrong magic": (lambda d: overwrite(d, IMAGES, b"PK\3\4" + bytes(99)), "wrong magic number"),
    "still gzipped": (
        lambda d: overwrite(d, IMAGES, gzip.compress((d / IMAGES).read_bytes())),
        "is still gzipped",
    ),
    "named .gz, not gzipped": (
        lambda d: (d / IMAGES).rename(d / (IMAGES + ".gz")),
        "is named .gz but is not gzipped",
    ),
    "gzip truncated": (truncated_gzip, "the gzip file is truncated"),
    "gzip damaged": (damaged_gzip, "the gzip file is damaged"),
    "header cut": (
        lambda d: overwrite(d, IMAGES, (d / IMAGES).read_bytes()[:9]),
        "truncated within its header",
    ),
    "truncated": (
        lambda d: overwrite(d, IMAGES, (d / IMAGES).read_bytes()[:-1]),
        "is truncated: its header claims 600 x 12 x 10",
    ),
    "claims 60,000": (lambda d: claims(d, 60000), "its header claims 60000 x 12 x 10"),
    "claims 2 GB": (lambda d: claims(d, 18_000_000), "(2160000000 bytes)"),
    "claims 2 GB in gzip": (lambda d: claims_in_gzip(d, 18_000_000), "(2160000000 bytes)"),
    "too long": (
        lambda d: overwrite(d, IMAGES, (d / IMAGES).read_bytes() + b"x"),
        "has more bytes than its header claims",
    ),
    "claims none": (lambda d: claims(d, 0), "holds no items"),
    "swapped": (swap, "are the two files swapped?"),
    "labels from 1": (lambda d: relabel(d, lambda x: x + 1), "run from 1 to 4; they must start at"),
    "a test label too high": (
        lambda d: relabel(
            d, lambda x: np.where(np.arange(len(x)) == 9, 77, x), "t10k-labels-idx1-ubyte"
        ),
        "test label 77 at position 9 is out of range 0..3",
    ),
    "one class": (lambda d: relabel(d, lambda x: x * 0), "every training label is 0"),
    "count mismatch": (
        lambda d: relabel(d, lambda x: x[:-1]),
        "600 images, but train-labels-idx1-ubyte has 599 labels",
    ),
    "two of a kind": (
        lambda d: overwrite(d, "train-images.again", (d / IMAGES).read_bytes()),
        "more than one train-images file",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_each_damage_has_its_own_error(small_set, name):
    damage, expected = DAMAGE[name]
    damage(small_set)
    with pytest.raises(DataError) as error:
        data.load(small_set)
    assert expected in str(error.value)
    assert "\n" not in str(error.value) and str(small_set) in str(error.value)


def test_the_errors_differ_from_one_another():
    texts = {expected for _, expected in DAMAGE.values()}
    assert len(texts) >= 18


def test_an_asked_number_of_classes_bounds_the_labels(small_set):
    with pytest.raises(DataError, match=r"training label 3 at position 3 is out of range 0\.\.2"):
        data.load(small_set, classes=3)
    assert data.load(small_set, classes=10).classes == 10


def test_a_false_claim_allocates_nothing(small_set):
    """Under a limit on memory far below the claim, the same line comes."""
    claims(small_set, 18_000_000)
    code = (
        "import resource, sys; sys.path.insert(0, '.')\n"
        "from workload import data\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "data.load(__import__('pathlib').Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, small_set], cwd=ROOT, capture_output=True, text=True
    )
    assert "DataError" in done.stderr and "2160000000 bytes" in done.stderr


def test_check_says_what_is_there_without_tensorflow(workload):
    code, out, _ = workload("check")
    assert code == 0
    assert "600 training and 600 test images, 12 x 10 x 1 uint8, 4 classes" in out
    swap(workload.data)
    code, out, err = workload("check")
    assert code == DATA and len(err) == 1 and "swapped" in err[0]
    probe = "import sys; from workload import check, data; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_gzip_floats_colours_and_a_top_folder_are_read_alike(tmp_path):
    random = np.random.default_rng(1)
    images = random.random((20, 5, 7, 3)).astype(np.float32)
    labels = np.arange(20, dtype=np.uint8) % 2
    root = write_set(tmp_path / "archive" / "mnist-like", images, labels)
    for path in list(root.iterdir()):
        (root / (path.name + ".gz")).write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    found = data.load(tmp_path / "archive")
    assert found.image_shape == (5, 7, 3) and found.classes == 2
    np.testing.assert_array_equal(found.train.images, images)
    np.testing.assert_array_equal(found.test.labels, labels)


def test_mnist_is_mapped_not_copied(mnist):
    found = data.load(mnist)
    assert isinstance(found.train.images.base, np.memmap)
    assert found.train.images.shape == (60000, 28, 28, 1) and found.classes == 10
    assert np.bincount(found.test.labels).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert idx.read(mnist / LABELS, (1,))[:5].tolist() == [5, 0, 4, 1, 9]
