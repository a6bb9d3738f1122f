"""What the data-set tests share: a box without SSH, sets to upload, byte-exact trees."""

import os
import random
import tempfile
from pathlib import Path

import pytest

from deploy.console import Show
from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink
from deploy.plan.config import DataSet
from deploy.verbs.desk import Desk
from deploy.verbs.stage import stage_set
from deploy.verbs.upload import upload_set


def tree_of(root):
    """Every path below `root` (bytes) with what it is: a file's content, a link's target, a folder."""
    found = {}
    for where, folders, files in os.walk(os.fsencode(root)):
        for name in folders + files:
            path = os.path.join(where, name)
            key = os.path.relpath(path, os.fsencode(root))
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                found[key] = ("folder",)
            else:
                with open(path, "rb") as file:
                    found[key] = ("file", file.read())
    return found


def small_files(root, count, seed=1, largest=8192):
    source = random.Random(seed)
    for i in range(count):
        folder = root / f"class{i % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:05}.png").write_bytes(source.randbytes(source.randint(1, largest)))


class LocalBox:
    """This machine as a box with folders of its own, without SSH: the same agent, the same verbs."""

    def __init__(self, folder):
        self.folder = folder
        self.data, self.input = folder / "data", folder / "input"
        self.data.mkdir(exist_ok=True), self.input.mkdir(exist_ok=True)
        self.desk = Desk(Show(machine=True), ["local"])
        self.agent = Agent(LocalLink(), {"data": str(self.data), "input": str(self.input)})

    def upload(self, path, name="set", **config):
        return upload_set(self.desk, self.agent, name, DataSet(str(path), **config))

    def stage(self, name="set", version="current", verify=False):
        return stage_set(self.desk, self.agent, name, version, verify)

    def visible(self, name="set"):
        """What /data/NAME shows beside .gpubox."""
        found = tree_of(self.data / name)
        return {k: v for k, v in found.items() if not k.startswith(b".gpubox")}


@pytest.fixture
def box(installed):
    """In memory where there is /dev/shm: syncing a disk that others write to takes seconds."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="gpubox-test-", dir=memory) as folder:
        yield LocalBox(Path(folder))


def pytest_collection_modifyitems(items):
    """Tests with a box start its programs several times: not for `make check`."""
    for item in items:
        if "box" in getattr(item, "fixturenames", ()) and "tests/data" in str(item.path):
            item.add_marker(pytest.mark.slow)
