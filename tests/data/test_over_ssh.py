"""Data sets over a real sshd: up, staged, byte for byte the same."""

import random
import shutil

import pytest

from deploy.effects import upload as sending
from deploy.effects.packer import PackThere
from deploy.effects.parts import PackHere
from deploy.effects.session import Session
from deploy.effects.ssh import Channel
from deploy.errors import LinkLost
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


@pytest.fixture
def server(sshd):
    return sshd()


@pytest.fixture
def no_ssh_here(server, tmp_path, monkeypatch):
    """A laptop without the system's ssh: all goes over Fabric's own channel, as it lists here."""
    (tmp_path / "tools").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    assert shutil.which("ssh") is None
    used = []
    closed = Channel.close
    monkeypatch.setattr(Channel, "close", lambda self: (used.append(self), closed(self)))
    return used


def test_without_the_systems_ssh_it_goes_over_our_own_channel(server, tmp_path, no_ssh_here):
    small_files(tmp_path / "set", 500)
    desk = server.desk()
    with desk.open("box") as box:
        assert "no system ssh" in box.link.describe()["bulk"]
        assert upload_set(desk, box, "pics", DataSet(str(tmp_path / "set")))["changed"]
        assert not upload_set(desk, box, "pics", DataSet(str(tmp_path / "set")))["changed"]
        staged = stage_set(desk, box, "pics")
    assert tree_of(staged["path"]) == tree_of(tmp_path / "set")
    assert len(no_ssh_here) >= 3  # two looks and one upload at least


@pytest.mark.parametrize("what", ["large file", "pack"])
def test_cut_off_on_our_own_channel_it_goes_on_where_it_was(
    server, tmp_path, monkeypatch, no_ssh_here, what
):
    source = tmp_path / "set"
    source.mkdir()
    if what == "pack":
        small_files(source, 4000, largest=16384)
    else:
        (source / "large").write_bytes(random.Random(5).randbytes(32 << 20))
    size = sum(each.stat().st_size for each in source.rglob("*") if each.is_file())
    reader, name = (PackThere, "__iter__") if what == "pack" else (sending, "file_blocks")
    whole = getattr(reader, name)

    def cut_in_between(*words):
        for at, block in enumerate(whole(*words)):
            if at == 20:
                server.cut()
            yield block

    monkeypatch.setattr(reader, name, cut_in_between)
    desk = server.desk()
    with desk.open("box") as box, pytest.raises(LinkLost):
        upload_set(desk, box, "set", DataSet(str(source)))
    assert not (server.data / "set" / ".gpubox" / "current").exists()
    monkeypatch.setattr(reader, name, whole)
    with desk.open("box") as box:
        again = upload_set(desk, box, "set", DataSet(str(source)))
        staged = stage_set(desk, box, "set")
    assert 0 < again["sent_bytes"] < size - (10 << 20)
    assert tree_of(staged["path"]) == tree_of(source)


@pytest.fixture
def several(sshd, monkeypatch):
    """A box that is reached by three streams, and packs small enough to fill them."""
    from deploy.plan import transfer

    monkeypatch.setattr(transfer, "PACK_AT_LEAST", 300_000)
    monkeypatch.setattr(transfer, "PACK_AT_MOST", 600_000)
    return sshd(toml="streams = 3")


def test_several_streams_bring_the_same_version_as_one(several, sshd, tmp_path, monkeypatch):
    small_files(tmp_path / "set", 1000)
    for name in ("aa", "class3/large", "zz"):
        (tmp_path / "set" / name).write_bytes(random.Random(name).randbytes(3 << 20))
    sent = []
    for kind in ("pack", "part"):
        plain = getattr(Session, kind)
        monkeypatch.setattr(
            Session, kind, lambda self, *words, do=plain: (sent.append(self), do(self, *words))[1]
        )
    desk = several.desk()
    with desk.open("box") as box:
        first = upload_set(desk, box, "set", DataSet(str(tmp_path / "set")))
        assert len(set(sent)) == 3 and len(sent) > 10
        staged = stage_set(desk, box, "set")
    assert tree_of(staged["path"]) == tree_of(tmp_path / "set")
    one = sshd(name="one")
    with one.desk().open("one") as box:
        assert (
            upload_set(one.desk(), box, "set", DataSet(str(tmp_path / "set")))["version"]
            == (first["version"])
        )


def test_several_streams_cut_off_go_on_and_mend_damage(several, tmp_path, monkeypatch):
    small_files(tmp_path / "set", 1500)
    (tmp_path / "set" / "large").write_bytes(random.Random(3).randbytes(8 << 20))
    whole = PackHere.__iter__
    begun = []

    def cut_in_between(*words):
        begun.append(words)
        for batch in whole(*words):
            if len(begun) >= 8:  # another stream may have begun the ninth by now
                several.cut()
            yield batch

    monkeypatch.setattr(PackHere, "__iter__", cut_in_between)
    desk = several.desk()
    with desk.open("box") as box, pytest.raises(LinkLost):
        upload_set(desk, box, "set", DataSet(str(tmp_path / "set")))
    assert not (several.data / "set" / ".gpubox" / "current").exists()
    monkeypatch.setattr(PackHere, "__iter__", whole)
    with desk.open("box") as box:
        again = upload_set(desk, box, "set", DataSet(str(tmp_path / "set")))
        assert 0 < again["sent_bytes"] < bytes_of(tmp_path / "set")
        packs = sorted((several.data / "set" / ".gpubox" / "packs").glob("*.tar"))
        assert len(packs) > 8
        for path in (packs[1], packs[5], several.data / "set" / "large"):
            content = path.read_bytes()
            path.write_bytes(content[:-2000] + bytes([content[-2000] ^ 1]) + content[-1999:])
        assert len(box.call("data_check", name="set")["damaged"]) == 3
        upload_set(desk, box, "set", DataSet(str(tmp_path / "set")))
        assert box.call("data_check", name="set")["damaged"] == []
        staged = stage_set(desk, box, "set")
    assert tree_of(staged["path"]) == tree_of(tmp_path / "set")


def bytes_of(root):
    return sum(each.stat().st_size for each in root.rglob("*") if each.is_file())
