"""Makes small data sets and runs the real workload on them, in folders of its own."""

import os
import subprocess
import sys
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


class Workload:
    """Runs `python -m workload` with folders of its own."""

    def __init__(self, folder, data):
        self.output, self.scratch, self.data = folder / "output", folder / "scratch", data
        self.scratch.mkdir(parents=True, exist_ok=True)

    @property
    def checkpoints(self):
        return self.output / "checkpoints"

    @property
    def environment(self):
        return {
            "GPUBOX_INPUT": str(self.data),
            "GPUBOX_OUTPUT": str(self.output),
            "GPUBOX_SCRATCH": str(self.scratch),
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, *arguments, **environment):
        """The started process, with its output piped and unbuffered."""
        env = {**os.environ, **self.environment, **environment}
        command = [sys.executable, "-m", "workload", *map(str, arguments)]
        return subprocess.Popen(
            command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def __call__(self, *arguments, **environment):
        """(exit code, stdout, our own lines on stderr)"""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=500)
        own = [t for t in err.splitlines() if t.startswith(("error:", "warning:", "Traceback"))]
        assert "Traceback" not in err, err
        return process.returncode, out, own
