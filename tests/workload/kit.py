"""Makes small data sets and runs the real workload on them, in folders of its own."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def idx_bytes(array):
    """An array as an IDX file."""
    code = {"uint8": 0x08, "float32": 0x0D}[array.dtype.name]
    head = bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_set(folder, images, labels, test_images=None, test_labels=None):
    """Four IDX files; the test part is the training part where it is not given."""
    folder.mkdir(parents=True, exist_ok=True)
    test_images = images if test_images is None else test_images
    test_labels = labels if test_labels is None else test_labels
    for name, array in (
        ("train-images-idx3-ubyte", images),
        ("train-labels-idx1-ubyte", labels),
        ("t10k-images-idx3-ubyte", test_images),
        ("t10k-labels-idx1-ubyte", test_labels),
    ):
        (folder / name).write_bytes(idx_bytes(array))
    return folder


class Nursery:
    """The process of nursery.py: runs one workload process at a time."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.workload.nursery"],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline() == "ready\n"

    def start(self, order):
        """Starts one; returns its process id."""
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        """Waits for it; returns its exit code, negative for a signal."""
        return int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


class Workload:
    """Runs the workload with folders of its own, by a nursery where one is given."""

    def __init__(self, folder, data, nursery):
        self.output, self.scratch, self.data = folder / "output", folder / "scratch", data
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.log, self.errors, self.nursery = folder / "out.log", folder / "err.log", nursery

    @property
    def checkpoints(self):
        return self.output / "checkpoints"

    def start(self, *arguments, **environment):
        """Starts a run; returns its process id."""
        self.log.write_text("")
        folders = {"INPUT": self.data, "OUTPUT": self.output, "SCRATCH": self.scratch}
        own = {f"GPUBOX_{name}": str(path) for name, path in folders.items()}
        order = {
            "arguments": [str(each) for each in arguments],
            "environment": {**own, **environment},
            "out": str(self.log),
            "err": str(self.errors),
        }
        return self.nursery.start(order)

    def end(self):
        """(exit code, stdout, our own lines on stderr)"""
        code, err = self.nursery.end(), self.errors.read_text()
        assert "Traceback" not in err, err
        own = [text for text in err.splitlines() if text.startswith(("error:", "warning:"))]
        return code, self.log.read_text(), own

    def __call__(self, *arguments, **environment):
        """Runs it to its end: (exit code, stdout, our own lines on stderr)"""
        self.start(*arguments, **environment)
        return self.end()

    def wait_for(self, text):
        """Returns when `text` stands on its stdout."""
        wait_until(lambda: text in self.log.read_text())


def wait_until(condition, seconds=120, pause=0.01):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(pause)
    assert condition()
