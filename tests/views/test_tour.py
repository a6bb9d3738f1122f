"""The five-minute tour as people run it: a program of their own, pictures, a box over SSH, and home."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.box.fixtures import boxes, cpu_image, engine  # noqa: F401
from tests.views.test_workers import tensorflow  # noqa: F401

pytestmark = [pytest.mark.engine, pytest.mark.box, pytest.mark.slow, pytest.mark.tensorflow]
ROOT = Path(__file__).resolve().parents[2]


def test_the_tour_ends_with_a_trained_model_at_home(boxes, tensorflow, tmp_path):  # noqa: F811
    toml = 'runner = "process"\npython = "/opt/venv/bin/python"\nshared = true\n'
    box = boxes.start("process", "rented", toml=toml, more=tensorflow)
    done = subprocess.run(
        [ROOT / "examples/tour/tour.sh", "rented"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (run,) = (tmp_path / "gpubox-tour" / "home").iterdir()
    output = run / "output"
    result = json.loads((output / "result.json").read_text())
    assert result["test_accuracy"] > 0.8  # three shapes: by chance 0.33
    assert (output / "checkpoints" / "step_00000480" / "model.keras").is_file()  # 20 × 24 batches
    assert "val_accuracy" in (tmp_path / "gpubox-tour" / "compare.html").read_text()
    names = box.run("ls", "/data/runs").stdout.split()
    files = [box.run("cat", f"/data/runs/{name}/state.json").stdout for name in names]
    states = sorted(json.loads(text)["state"] for text in files)  # ids of one minute have no order
    assert states in (["finished", "stopped"], ["finished", "finished"])
