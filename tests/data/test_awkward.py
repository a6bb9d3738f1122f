"""Names, links and kinds of files that are awkward: the same at both ends, or said, or refused."""

import os
import socket
import stat
from pathlib import Path

import pytest

from deploy.effects.scan import linked_bytes, refuse_what_cannot_go, scan, warnings
from deploy.errors import DataError, UsageError
from deploy.plan.config import DataSet
from deploy.verbs.data import data
from deploy.verbs.stage import stage_set
from deploy.verbs.upload import upload_set
from tests.data.conftest import small_files, tree_of

NAMES = [
    b"-rf",
    b"a\nb.png",
    b"sp ace.png",
    b"bad\xc3\x28.png",
    b"$(touch PWN).png",
    b"q'uo\"te.png",
    "猫.png".encode(),
    b"back\\slash",
    b"tab\there",
    b"*",
    b"...",
    b"~",
    b"x" * 250,
    b"\xff" * 100,
]


def awkward(root):
    os.makedirs(root)
    for name in NAMES:
        with open(os.path.join(os.fsencode(root), name), "wb") as file:
            file.write(name)
    for folder in ("empty", "train/cat", "deep/" + "/".join("d" * 40 for _ in range(20))):
        (root / folder).mkdir(parents=True)
    (root / "train" / "cat" / "zero").touch()
    (root / "train" / "cat" / "read-only").write_bytes(b"x")
    (root / "train" / "cat" / "read-only").chmod(0o400)
    (root / "dangling").symlink_to("nowhere")
    (root / "loop").symlink_to(".")
    (root / "train" / "up").symlink_to("../empty")
    return root


@pytest.mark.sshd
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "files"])
def test_names_of_any_bytes_are_the_same_at_both_ends(sshd, tmp_path, layout, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = awkward(tmp_path / "set")
    server = sshd()
    desk = server.desk()
    with desk.open("box") as box:
        upload_set(desk, box, "set", DataSet(str(source), layout=layout))
        staged = stage_set(desk, box, "set")
    assert tree_of(staged["path"]) == tree_of(source)
    assert (Path(staged["path"]) / "train/cat/read-only").stat().st_mode & 0o777 == 0o400
    assert [each["name"] for each in data(desk, "", "", "")[0]["sets"]] == ["set"]
    data(desk, "set", "", "remove")
    assert tree_of(server.data).keys() <= {b"runs"}
    assert not list(tmp_path.rglob("PWN"))


@pytest.mark.parametrize(
    "name", ["my data $(touch PWN)", "-rf", "", "runs", "a/b", "..", "x" * 200]
)
def test_names_of_sets_that_are_not_safe_are_refused(box, tmp_path, name):
    small_files(tmp_path / "set", 3)
    with pytest.raises(UsageError):
        box.upload(tmp_path / "set", name=name)
    with pytest.raises(UsageError):
        box.stage(name=name)


def survey(root, exclude=()):
    return scan(str(root), exclude, root.parent / "scan")


def test_links_that_leave_the_set_are_refused_by_name(tmp_path):
    root = tmp_path / "set"
    (root / "sub").mkdir(parents=True)
    (root / "abs").symlink_to("/etc/hostname")
    (root / "sub" / "up").symlink_to("../../x")
    (root / "sub" / "fine").symlink_to("../sub")
    with pytest.raises(DataError, match="abs → /etc/hostname, sub/up → ../../x"):
        refuse_what_cannot_go(survey(root), str(root))
    refuse_what_cannot_go(survey(root, ["abs", "up"]), str(root))


def test_what_is_no_file_is_named_and_left_out(tmp_path):
    root = tmp_path / "set"
    root.mkdir()
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        (root / "file").write_bytes(b"x")
        found = survey(root)
    assert (found.files, found.special) == (1, ["fifo", "socket"])
    assert any("fifo, socket" in text for text in warnings(found))


@pytest.mark.parametrize(
    "pair", [("A.png", "a.png"), ("\u00e9.png", "e\u0301.png"), ("STRASSE", "straße")]
)
def test_names_that_other_systems_take_for_one_are_said(tmp_path, pair):
    root = tmp_path / "set"
    root.mkdir()
    for name in pair:
        (root / name).write_bytes(b"x")
    (root / "other").write_bytes(b"x")
    assert [set(each) for each in survey(root).alike] == [set(pair)]


def test_what_a_mac_or_git_leaves_is_skipped_and_counted(tmp_path):
    root = tmp_path / "set"
    for path in (
        ".DS_Store",
        "a/._1.png",
        "__MACOSX/x",
        ".git/config",
        "a/1.png",
        "a/2.tmp",
        "b/c/3",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    found = survey(root, ["*.tmp", "b/c"])
    assert (found.files, found.skipped) == (1, 6)


@pytest.mark.parametrize("content", [[], [".DS_Store"]])
def test_a_set_without_files_is_an_error(box, tmp_path, content):
    (tmp_path / "set").mkdir()
    for name in content:
        (tmp_path / "set" / name).touch()
    with pytest.raises(
        DataError, match="no files" if not content else "only files that are skipped"
    ):
        box.upload(tmp_path / "set")


def test_a_reserved_name_inside_is_refused(tmp_path):
    (tmp_path / "set" / ".gpubox").mkdir(parents=True)
    with pytest.raises(DataError, match=r"\.gpubox"):
        survey(tmp_path / "set")


def test_holes_and_hard_links_are_said(tmp_path):
    root = tmp_path / "set"
    root.mkdir()
    with open(root / "sparse", "wb") as file:
        file.truncate(50 << 20)
    (root / "one").write_bytes(b"x" * 1000)
    os.link(root / "one", root / "two")
    found = survey(root)
    assert (found.sparse, linked_bytes(found)) == (1, 1000)
    assert len(warnings(found)) == 2


def test_on_the_box_only_the_user_can_read_it(box, tmp_path):
    small_files(tmp_path / "set", 3)
    (tmp_path / "set").chmod(0o777)
    box.upload(tmp_path / "set")
    for where, folders, files in os.walk(box.data / "set"):
        for name in folders:
            assert stat.S_IMODE(os.lstat(os.path.join(where, name)).st_mode) == 0o700
        for name in files:
            assert stat.S_IMODE(os.lstat(os.path.join(where, name)).st_mode) == 0o600


def test_a_group_can_read_it_where_the_box_says_so(sshd, tmp_path):
    server = sshd(toml='data_group = "daemon"')
    small_files(tmp_path / "set", 3)
    desk = server.desk()
    with desk.open("box") as box:
        upload_set(desk, box, "set", DataSet(str(tmp_path / "set")))
    import grp

    group = grp.getgrnam("daemon").gr_gid
    for path in [server.data / "set", *(server.data / "set").rglob("*")]:
        if path.name != "lock":
            found = path.lstat()
            expected = 0o2750 if path.is_dir() else 0o640
            assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (group, expected), path


test_a_group_can_read_it_where_the_box_says_so.pytestmark = [pytest.mark.sshd, pytest.mark.slow]


@pytest.mark.parametrize("planted", ["set", "set/.gpubox", "set/sub"])
def test_a_planted_link_is_never_followed(box, tmp_path, planted):
    outside = tmp_path / "outside"
    outside.mkdir()
    source = tmp_path / "set"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file").write_bytes(b"x")
    (source / "a").write_bytes(b"x")
    if planted == "set/sub":  # in a set of ours, where only the owner could have put it
        (source / "sub" / "file").unlink()
        box.upload(source)
        (source / "sub" / "file").write_bytes(b"x")
    (box.data / planted).parent.mkdir(exist_ok=True)
    (box.data / planted).symlink_to(outside)
    with pytest.raises(Exception):  # noqa: B017
        box.upload(source)
    assert list(outside.iterdir()) == []


def test_a_folder_of_someone_else_is_not_taken_over(box, tmp_path):
    (box.data / "set").mkdir()
    (box.data / "set" / "theirs").write_bytes(b"x")
    small_files(tmp_path / "set", 3)
    with pytest.raises(DataError, match="not uploaded by this kit"):
        box.upload(tmp_path / "set")
    assert [each.name for each in (box.data / "set").iterdir()] == ["theirs"]
