"""Fixtures for tests with an engine: `boxes` starts real boxes, `cpu_image` is our image, built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.box.box import Boxes

ROOT = Path(__file__).resolve().parent.parent.parent


def engine_answers() -> bool:
    """Whether a Docker engine answers here."""
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(["docker", "version"], capture_output=True, stdin=subprocess.DEVNULL)
    return done.returncode == 0


@pytest.fixture(scope="session")
def engine():
    """Skips the test where no engine answers, and says what to do."""
    if not engine_answers():
        pytest.skip("no Docker engine answers: tests/engine start (as root), or install docker.io")


@pytest.fixture(scope="session")
def cpu_image(engine, tmp_path_factory):
    """The tag of our CPU image with today's workload (a minute once, then under a second)."""
    command = [str(ROOT / "images/build.py"), "cpu", "--quiet"]
    # The session's first test has its own HOME already; the build needs none but the client's.
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    return "gpubox/cpu:latest"


@pytest.fixture
def boxes(engine, tmp_path_factory, monkeypatch):
    """`boxes.start(KIND)` starts a real box (see tests/box/box.py); all are removed afterwards."""
    fleet = Boxes(tmp_path_factory.mktemp("boxes"))
    monkeypatch.setenv("GPUBOX_CONFIG", str(fleet.toml))
    yield fleet
    fleet.stop()
