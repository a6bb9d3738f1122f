"""Scans shared out between processes are the same; the memory tells few changes as a whole look does."""

import json
import multiprocessing
import os
import random
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from deploy.effects import scan as scanning
from deploy.effects.scan import Helper, Unit, read_scan, scan, shared_out, sliced
from deploy.effects.walk import Walk
from deploy.onbox.manifest import key_of
from deploy.verbs.uploading import Upload
from tests.data.conftest import small_files, tree_of
from tests.data.test_awkward import awkward


@pytest.fixture
def tree(tmp_path):
    """All kinds of what a scan meets, wide and deep enough to be shared out."""
    root = awkward(tmp_path / "set")
    source = random.Random(7)
    for i in range(60):
        folder = root / "wide" / f"{source.randrange(10**6):06}"
        folder.mkdir(parents=True)
        for j in range(source.randrange(30)):
            (folder / f"{j}.png").write_bytes(b"x" * source.randrange(9))
        os.link(root / "train/cat/zero", folder / "linked")  # hard links across the parts
        if i % 20 == 0:
            (folder / "Case").touch(), (folder / "case").touch()
            (folder / ".DS_Store").touch(), (folder / "left.tmp").touch()
            os.mkfifo(folder / "fifo")
            (folder / "out").symlink_to("../../../outside")
            os.truncate(os.open(folder / "sparse", os.O_CREAT | os.O_WRONLY), 5 << 20)
    for i in range(3000):
        (root / "wide" / f"{i}.txt").touch()
    return root


def survey_of(root, tmp_path, helpers):
    target = tmp_path / f"scan-{helpers}"
    found = scan(str(root), ["*.tmp", "wide/0*"], target, helpers)
    return target.read_bytes(), json.dumps(vars(found))


@pytest.mark.parametrize("helpers", [1, 3])
def test_a_scan_is_the_same_however_many_make_it(tree, tmp_path, helpers):
    lines, survey = survey_of(tree, tmp_path, 0)
    assert survey_of(tree, tmp_path, helpers) == (lines, survey)
    keys = [key_of(each) for each in read_scan(tmp_path / "scan-0")]
    assert keys == sorted(set(keys)) and len(keys) > 3000


def test_a_scan_finds_what_a_plain_walk_finds(tree, tmp_path):
    for path in [*tree.rglob("fifo"), *tree.rglob(".DS_Store")]:
        path.unlink()
    scan(str(tree), [], tmp_path / "scan", 2)
    found = {os.fsencode(each.path): each.type for each in read_scan(tmp_path / "scan")}
    plain = {path: what[0] for path, what in tree_of(tree).items()}
    assert found == plain


def test_what_a_helper_leaves_undone_is_done_here(tree, tmp_path, monkeypatch):
    expected = survey_of(tree, tmp_path, 0)
    answers = []

    def dies(helper):
        answers.append(helper._process.stdout.readline())
        helper._process.kill()
        return b""

    monkeypatch.setattr(Helper, "_answer", dies)
    assert survey_of(tree, tmp_path, 1) == expected and len(answers) == 1
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert survey_of(tree, tmp_path, 2) == expected


def test_few_files_are_looked_at_without_a_helper(tmp_path, monkeypatch):
    small_files(tmp_path / "few", 1500)
    small_files(tmp_path / "many", 2500)
    begun = []
    monkeypatch.setattr(scanning, "cores", lambda: 2)
    real = Helper.__init__
    monkeypatch.setattr(Helper, "__init__", lambda *a: (begun.append(1), real(*a))[1])
    scan(str(tmp_path / "few"), [], tmp_path / "scan")
    assert begun == []
    scan(str(tmp_path / "many"), [], tmp_path / "scan")
    assert begun == [1]


@pytest.mark.parametrize(
    "layout",
    [["a"] * 5000, ["a/b/c/d/" + str(i % 3) for i in range(100)], [str(i) for i in range(50)]],
)
def test_units_hold_everything_once_and_in_order(tmp_path, layout):
    root = tmp_path / "set"
    for number, folder in enumerate(layout):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / str(number)).touch()
    walk = Walk(str(root), ())
    units = shared_out(walk, walk.names(""))
    lines = [line for each in units for part in walk.lines(*each) for line in part]
    alone = [line for part in walk.lines("", walk.names("")) for line in part]
    assert lines == alone and len(units) > 1


def test_a_folder_without_folders_is_cut_evenly():
    names = [str(i) for i in range(5000)]
    pieces = list(sliced(Unit("", names)))
    assert [len(each.names) for each in pieces] == [2000, 2000, 1000]
    assert [name for each in pieces for name in each.names] == names


def scan_as_nobody(root, pipe):
    os.setgid(65534), os.setuid(65534)
    found = scan(str(root), (), root.parent / "scan", 0)
    pipe.send((sorted(found.unreadable), found.files))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_only_others_may_read_is_named():
    """As a user who is not root: by the bits where the file is ours, else by asking."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "set"
        small_files(root, 3)
        (root / "closed").write_bytes(b"x")
        (root / "closed").chmod(0o000)
        (root / "shut").mkdir(mode=0o000)
        for path in [root.parent, root, *root.rglob("*")]:
            os.lchown(path, 65534, 65534)
        for name, mode in (("theirs", 0o600), ("shared", 0o644)):
            (root / name).write_bytes(b"x")
            (root / name).chmod(mode)
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(
            target=scan_as_nobody, args=(root, theirs)
        )
        child.start(), theirs.close()
        assert ours.recv() == (["closed", "shut/", "theirs"], 6)
        child.join()


def edit(root, source):
    """A few changes of every kind, at random places."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    gone, changed, touched, moved, mode = source.sample(files, 5)
    gone.unlink()
    changed.write_bytes(source.randbytes(changed.stat().st_size if source.random() < 0.5 else 99))
    os.utime(touched, (0, source.randrange(10**9)))
    moved.rename(moved.with_name(f"moved{source.randrange(10**6)}.png"))
    mode.chmod(source.choice([0o600, 0o640, 0o755]))
    new = (
        root
        / source.choice(["", "class1", "猫", "class1/deep"])
        / f"n{source.randrange(10**6)}.png"
    )
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_bytes(source.randbytes(300))
    (root / "link").unlink(missing_ok=True)
    (root / "link").symlink_to(source.choice(["class1", "class2", "nowhere"]))


@pytest.mark.parametrize("layout", ["packed", "files"])
def test_few_changes_make_the_version_that_a_whole_look_makes(box, tmp_path, layout, monkeypatch):
    root, source = tmp_path / "set", random.Random(layout)
    small_files(root, 150)
    box.upload(root, layout=layout)
    whole_looks, real = [], Upload._all
    monkeypatch.setattr(Upload, "_all", lambda *a: (whole_looks.append(1), real(*a))[1])
    for turn in range(6):
        edit(root, source)
        box.desk.dry_run = True
        dry = box.upload(root, layout=layout)
        box.desk.dry_run = False
        assert whole_looks == []
        with monkeypatch.context() as whole:  # a laptop that remembers nothing
            whole.setenv("GPUBOX_HOME", str(tmp_path / f"other{turn}"))
            box.desk.dry_run = True
            expected = box.upload(root, layout=layout)
            box.desk.dry_run = False
        whole_looks.clear()
        done = box.upload(root, layout=layout)
        assert whole_looks == [] and done["plan"] == expected["plan"] == dry["plan"]
        assert done["sent_files"] == expected["sent_files"]
        with monkeypatch.context() as whole:
            whole.setenv("GPUBOX_HOME", str(tmp_path / f"another{turn}"))
            again = box.upload(root, layout=layout)
        whole_looks.clear()
        assert not again["changed"] and again["version"] == done["version"]
        assert not box.upload(root, layout=layout)["changed"]
        assert tree_of(box.stage()["path"]) == tree_of(root)


def test_a_changed_archive_is_one_change(box, tmp_path):
    path = tmp_path / "set.tar"
    for content in (b"one", b"two and more"):
        (tmp_path / "file").write_bytes(content)
        with tarfile.open(path, "w") as tar:
            tar.add(tmp_path / "file", "file")
        done = box.upload(path)
    assert done["plan"] == ["send: 1, content changed"]
