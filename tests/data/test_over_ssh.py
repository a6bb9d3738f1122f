"""Data sets over a real sshd: up, staged, byte for byte the same."""

import random

import pytest

from deploy.plan.config import DataSet
from deploy.verbs.stage import stage_set
from deploy.verbs.upload import upload_set
from tests.data.conftest import small_files, tree_of

pytestmark = pytest.mark.sshd


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
