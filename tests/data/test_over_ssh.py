"""Data sets over a real sshd: up, staged, byte for byte the same."""

import os
import random

import pytest

from deploy.plan.config import DataSet
from deploy.verbs.stage import stage_set
from deploy.verbs.upload import upload_set

pytestmark = pytest.mark.sshd


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


def small_files(root, count, seed=1):
    source = random.Random(seed)
    for i in range(count):
        folder = root / f"class{i % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:05}.png").write_bytes(source.randbytes(source.randint(1, 8192)))


def test_two_thousand_small_files_and_nothing_the_second_time(sshd, tmp_path):
    server = sshd()
    small_files(tmp_path / "set", 2000)
    desk = server.desk()
    with desk.open("box") as box:
        first = upload_set(desk, box, "pics", DataSet(str(tmp_path / "set")))
        staged = stage_set(desk, box, "pics")
        second = upload_set(desk, box, "pics", DataSet(str(tmp_path / "set")))
        again = stage_set(desk, box, "pics")
    assert first["changed"] and first["sent_files"] == 2000
    assert tree_of(staged["path"]) == tree_of(tmp_path / "set") == tree_of(staged["link"])
    assert not second["changed"] and second["sent_bytes"] == 0
    assert (staged["already"], again["already"]) == (False, True)


def test_four_files_stay_visible_on_the_data_disk(sshd, tmp_path):
    """MNIST's shape: few files, so no pack; what stands in /data/NAME is what the user has."""
    server = sshd()
    source = tmp_path / "set"
    source.mkdir()
    for name, size in [("train-images", 3_000_000), ("train-labels", 60_008), ("t10k-labels", 8)]:
        (source / name).write_bytes(random.Random(size).randbytes(size))
    desk = server.desk()
    with desk.open("box") as box:
        upload_set(desk, box, "mnist", DataSet(str(source)))
        staged = stage_set(desk, box, "mnist")
    assert tree_of(staged["path"]) == tree_of(source)
    visible = {k: v for k, v in tree_of(server.data / "mnist").items() if b".gpubox" not in k}
    assert visible == tree_of(source)
