"""The example of a user's own program publishes whole checkpoints, stops and resumes."""

import os
import signal
import subprocess
import sys

import pytest

from tests.workload.kit import ROOT
from workload import checkpoint

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
PROGRAM = ROOT / "examples" / "keras" / "train.py"


def start(tmp_path, data, epochs):
    env = {**os.environ, "GPUBOX_INPUT": str(data), "GPUBOX_OUTPUT": str(tmp_path / "output")}
    command = [sys.executable, PROGRAM, "--epochs", str(epochs)]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE)


def test_it_imports_nothing_of_ours():
    text = PROGRAM.read_text()
    assert "workload" not in text and "import deploy" not in text


def test_it_stops_with_75_resumes_and_ends(tmp_path, small_set):
    process = start(tmp_path, small_set, 100_000)
    for text in process.stdout:
        if text.startswith("published step_00000002"):
            break
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=100)
    assert process.returncode == 75
    found = checkpoint.steps(tmp_path / "output" / "checkpoints")
    for step in found:
        folder = tmp_path / "output" / "checkpoints" / checkpoint.folder_name(step)
        assert checkpoint.damage(folder) == "" and (folder / "model.keras").exists()
    process = start(tmp_path, small_set, found[-1] + 1)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert f"starting after {found[-1]} epochs" in out and "test accuracy" in out
