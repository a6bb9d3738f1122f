"""Versions: what goes up for a change, what stays, who waits for whom."""

import json
import os
import random
import shutil
import tarfile
import threading

import pytest

from deploy.errors import Busy, NoSuchRun, UsageError
from deploy.onbox.keeping import Version, shrink, superfluous
from deploy.onbox.repack import is_wasteful
from deploy.onbox.shelf import Shelf
from deploy.verbs.data import data
from tests.data.conftest import small_files, tree_of


def do(box, what, version="", name="set"):
    from contextlib import contextmanager

    @contextmanager
    def opened(host):
        yield box.agent

    box.desk.open = opened
    return data(box.desk, name, version, what)[0]


def test_a_small_change_sends_a_small_pack(box, tmp_path):
    source = tmp_path / "set"
    small_files(source, 3000)
    box.upload(source)
    packs = set((box.data / "set" / ".gpubox" / "packs").iterdir())
    (source / "class1" / "00001.png").write_bytes(os.urandom(5000))
    (source / "class2" / "added.png").write_bytes(os.urandom(5000))
    (source / "class3" / "00003.png").unlink()
    again = box.upload(source)
    new = set((box.data / "set" / ".gpubox" / "packs").iterdir()) - packs
    assert again["sent_files"] == 2 and again["sent_bytes"] < 64 << 10
    assert sum(each.stat().st_size for each in new) < 16 << 10
    assert tree_of(box.stage()["path"]) == tree_of(source)


def test_what_moved_is_not_sent_again(box, tmp_path):
    source = tmp_path / "set"
    small_files(source, 300)
    (source / "large").write_bytes(os.urandom(3 << 20))
    box.upload(source)
    (source / "class1").rename(source / "renamed")
    (source / "large").rename(source / "class2" / "elsewhere")
    again = box.upload(source)
    assert again["sent_files"] == 0 and again["sent_bytes"] < 64 << 10
    assert tree_of(box.stage()["path"]) == tree_of(source)
    assert box.visible() == {
        b"class2": ("folder",),
        b"class2/elsewhere": ("file", (source / "class2" / "elsewhere").read_bytes()),
    }


def test_touched_files_are_the_same_version_and_new_modes_are_not(box, tmp_path):
    source = tmp_path / "set"
    small_files(source, 10)
    first = box.upload(source)
    os.utime(source / "class1" / "00001.png", (1, 1))
    assert box.upload(source)["version"] == first["version"]
    (source / "class1" / "00001.png").chmod(0o755)
    again = box.upload(source)
    assert again["version"] != first["version"] and again["sent_files"] == 0


def test_a_file_becomes_a_folder_and_back(box, tmp_path):
    source = tmp_path / "set"
    source.mkdir()
    for what in ("file", "folder", "file"):
        shutil.rmtree(source)
        source.mkdir()
        (source / "keep").write_bytes(b"k")
        if what == "folder":
            (source / "a").mkdir()
            (source / "a" / "b").write_bytes(b"folder")
        else:
            (source / "a").write_bytes(b"file")
        box.upload(source)
        assert box.visible() == tree_of(source) == tree_of(box.stage()["path"])


def test_an_older_version_is_staged_from_what_was_kept_of_it(box, tmp_path):
    source = tmp_path / "set"
    source.mkdir()
    (source / "plain").write_bytes(b"one")
    first, before = box.upload(source), tree_of(source)
    (source / "plain").write_bytes(b"two")
    box.upload(source)
    assert tree_of(box.stage(version=first["version"][:12])["path"]) == before
    do(box, "use", first["version"])
    assert box.visible() == before
    assert box.stage()["version"] == first["version"]


def test_versions_are_listed_pinned_and_removed(box, tmp_path):
    source = tmp_path / "set"
    ids = []
    for seed in range(5):
        shutil.rmtree(source, ignore_errors=True)
        small_files(source, 150, seed=seed)
        ids.append(box.upload(source)["version"])
        if seed == 0:
            do(box, "pin", ids[0])
    listed = {each["id"]: each for each in do(box, "")["sets"][0]["versions"]}
    assert set(listed) == {ids[0], ids[2], ids[3], ids[4]}  # 1 left: three newest, one pinned
    assert len(list((box.data / "set" / ".gpubox" / "packs").iterdir())) == 4
    with pytest.raises(UsageError, match="pinned"):
        do(box, "remove", ids[0])
    with pytest.raises(UsageError, match="current"):
        do(box, "remove", ids[4])
    do(box, "unpin", ids[0])
    assert do(box, "remove", ids[0])["removed"] == [ids[0]]
    assert len(list((box.data / "set" / ".gpubox" / "packs").iterdir())) == 3
    do(box, "remove")
    assert not (box.data / "set").exists()
    with pytest.raises(NoSuchRun):
        box.stage()


def test_a_version_that_a_run_uses_is_not_removed(box, tmp_path):
    small_files(tmp_path / "set", 3)
    version = box.upload(tmp_path / "set")["version"]
    run = box.data / "runs" / "one"
    run.mkdir(parents=True)
    (run / "run.json").write_text(f'{{"data": {{"name": "set", "version": "{version}"}}}}')
    (run / "state.json").write_text('{"state": "running"}')
    with pytest.raises(Busy):
        do(box, "remove")


@pytest.mark.parametrize("age, kept_for", [(2, "new"), (9, "pinned"), (9, "current"), (9, "used")])
def test_which_versions_leave(age, kept_for):
    marks = {word: word == kept_for for word in ("current", "pinned", "used")}
    assert superfluous([Version("v", age, **marks)]) == []
    assert [id for id, _ in superfluous([Version("v", 9, False, False, False)])] == ["v"]


def test_two_uploads_and_two_stagings_at_once_wait_for_each_other(box, tmp_path):
    source = tmp_path / "set"
    small_files(source, 400)
    (source / "large").write_bytes(random.Random(1).randbytes(20 << 20))
    results = []
    for act in (lambda: box.upload(source), lambda: box.stage()):
        both = [threading.Thread(target=lambda act=act: results.append(act())) for _ in range(2)]
        for each in both:
            each.start()
        for each in both:
            each.join()
    assert len(results) == 4
    assert sorted(each["already"] for each in results[2:]) == [False, True]
    assert tree_of(results[3]["path"]) == tree_of(source)


def test_the_memory_of_checksums_can_be_lost(box, tmp_path):
    from deploy.effects.settings import laptop_folder

    source = tmp_path / "set"
    small_files(source, 200)
    first = box.upload(source)
    shutil.rmtree(laptop_folder() / "uploads")
    shutil.rmtree(laptop_folder() / "manifests")
    again = box.upload(source)
    assert (again["version"], again["changed"], again["sent_files"]) == (first["version"], False, 0)


@pytest.mark.parametrize("count", [300, 1200])  # by one process, and by several
def test_a_folder_that_someone_else_put_there_is_staged_as_it_is(box, tmp_path, count):
    small_files(box.data / "theirs", count)
    (box.data / "theirs" / "large").write_bytes(os.urandom(9 << 20))
    (box.data / "theirs" / "link").symlink_to("large")
    first = box.stage("theirs")
    assert tree_of(first["path"]) == tree_of(box.data / "theirs") == tree_of(first["link"])
    assert box.stage("theirs")["already"]
    (box.data / "theirs" / "class1" / "new").write_bytes(b"x")
    again = box.stage("theirs")
    assert not again["already"] and again["version"] != first["version"]
    assert tree_of(again["link"]) == tree_of(box.data / "theirs")


@pytest.mark.parametrize(
    "wanted, size, wasteful", [(71, 100, False), (69, 100, True), (0, 0, False)]
)
def test_when_a_pack_is_written_anew(wanted, size, wasteful):
    assert is_wasteful(wanted, size) is wasteful


def test_a_pack_that_is_mostly_waste_is_written_anew(box, tmp_path):
    source = tmp_path / "set"
    small_files(source, 400)
    box.upload(source)
    first = next((box.data / "set" / ".gpubox" / "packs").iterdir())
    for turn in range(4):  # the first version leaves after the third
        for each in sorted(source.rglob("*.png"))[turn : 360 + turn]:
            each.write_bytes(random.Random(turn).randbytes(1000) + each.name.encode())
        box.upload(source)
    packs = {
        each: each.stat().st_size for each in (box.data / "set" / ".gpubox" / "packs").iterdir()
    }
    assert first not in packs
    for pack in packs:
        with tarfile.open(pack) as tar:
            assert tar.getmembers()
    assert do(box, "check")["damaged"] == []
    assert tree_of(box.stage()["path"]) == tree_of(source)
    (source / "new").write_bytes(b"x")  # the laptop finds its way in the manifest as it is now
    assert box.upload(source)["sent_files"] == 1


def test_a_manifest_in_another_spelling_keeps_what_it_names(box, tmp_path):
    small_files(tmp_path / "set", 150)
    version = box.upload(tmp_path / "set")["version"]
    own = box.data / "set" / ".gpubox"
    written = own / "versions" / f"{version}.jsonl"
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    short = [json.dumps(line, separators=(",", ":")) for line in lines[1:]]
    written.write_text("\n".join([json.dumps(lines[0]), *short]) + "\n")
    shelf = Shelf("set", str(box.data / "set"), str(own))
    (own / "packs" / f"{'0' * 64}.tar").write_bytes(b"nobody's")
    assert shrink(shelf) > 0
    assert {each.stem for each in (own / "packs").iterdir()} == {lines[2]["pack"]}
