"""What every test gets: a home of its own, and on request a throw-away sshd."""

from pathlib import Path

import pytest

from tests.sshd import Boxes

pytest_plugins = ["tests.box.fixtures"]  # boxes, cpu_image

# What package clients and the engine's client need to work at all; nothing of it is ours.
KEPT = (".docker", ".npmrc", ".cache", ".config/pip", ".config/uv", ".pyenv")


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    """HOME and GPUBOX_HOME are empty folders of this test; no config and no agent of the user's."""
    home = tmp_path_factory.mktemp("home")
    for name in KEPT:
        real = Path.home() / name
        if real.exists():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).symlink_to(real)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GPUBOX_HOME", str(home / ".gpubox"))
    for name in ("GPUBOX_CONFIG", "SSH_AUTH_SOCK", "SSH_ASKPASS"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def sshd(tmp_path_factory, monkeypatch):
    """`sshd()` starts a real sshd on a free port and returns a Server (see tests/sshd.py)."""
    boxes = Boxes(tmp_path_factory.mktemp("ssh"))
    monkeypatch.setenv("GPUBOX_CONFIG", str(boxes.toml))
    yield boxes.start
    boxes.stop()
