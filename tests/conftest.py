"""What every test gets: a home of its own, and on request a throw-away sshd."""

import shutil
import signal
from pathlib import Path

import pytest

from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink
from tests.sshd import Boxes

# A shell starts what runs behind its back (`make test &` in a script) with Ctrl-C ignored; children
# inherit that, and a verb that is to end by Ctrl-C would stay for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.box.fixtures"]  # boxes, cpu_image

# What package clients and the engine's client need to work at all; nothing of it is ours.
KEPT = (".docker", ".npmrc", ".cache", ".config/pip", ".config/uv", ".pyenv")


# The files that take minutes, the longest first: begun last, one of them would run on alone.
LONGEST = (
    "runs/test_outlives.py",
    "keeper/test_keeper_box.py",
    "runs/test_training.py",
    "views/test_workers_docker.py",
    "images/test_matrix.py",
    "chain/test_chain.py",
    "views/test_workers.py",
    "images/test_build_there.py",
    "boxes/test_secrets.py",
    "runs/test_real_ends.py",
    "keeper/test_days.py",
)


def pytest_collection_modifyitems(items):
    """Files stay whole, and those that are not long stay in the order of their names."""
    rank = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def make_home(tmp_path_factory):
    """An empty home, but for links to what package clients and the engine's client need."""
    home = tmp_path_factory.mktemp("home")
    for name in KEPT:
        real = Path.home() / name
        if real.exists():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).symlink_to(real)
    return home


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    """HOME and GPUBOX_HOME are empty folders of this test; no config and no agent of the user's."""
    home = make_home(tmp_path_factory)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GPUBOX_HOME", str(home / ".gpubox"))
    for name in ("GPUBOX_CONFIG", "SSH_AUTH_SOCK", "SSH_ASKPASS"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(scope="session")
def installation(tmp_path_factory):
    """What the first verb puts into a box's ~/.gpubox; compiling that takes a second."""
    home = make_home(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        Agent(LocalLink()).install()
    return home / ".gpubox"


@pytest.fixture
def installed(installation, own_home):
    """This machine as a box that a verb has been to before, for tests of what comes after."""
    shutil.copytree(installation, own_home / ".gpubox", dirs_exist_ok=True)


@pytest.fixture
def sshd(tmp_path_factory, monkeypatch):
    """`sshd()` starts a real sshd on a free port and returns a Server (see tests/sshd.py)."""
    boxes = Boxes(tmp_path_factory.mktemp("ssh"))
    monkeypatch.setenv("GPUBOX_CONFIG", str(boxes.toml))
    yield boxes.start
    boxes.stop()
