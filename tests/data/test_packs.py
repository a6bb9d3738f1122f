"""Packs of small files: read here or by a child, a plain tar, gone on with where they broke off."""

import hashlib
import os
import tarfile

import pytest

from deploy.effects.packer import Packers, PackThere
from deploy.effects.parts import PackHere
from deploy.effects.upload import Known, in_pack, lines_told
from deploy.errors import DataError, TransferError
from deploy.onbox.commit import Arrived
from deploy.onbox.packing import END, Inventory, header_size, padded, tar_of
from deploy.onbox.places import find_places
from deploy.onbox.refusal import Refusal
from deploy.onbox.shelf import find_shelf, make_shelf
from deploy.plan.transfer import FILE, FOLDER, Entry, Found, boundary


@pytest.fixture
def members(tmp_path):
    """Names and contents of every kind, as a scan would find them below `set`."""
    (tmp_path / "set").mkdir()
    found = []
    names = ["a", "b" * 200, os.fsdecode(b"bad\xff"), "猫" * 40, "new\nline", "empty"]
    for number, name in enumerate(names):
        path = tmp_path / "set" / name
        path.write_bytes(os.fsencode(name) if name != "empty" else b"")
        os.utime(path, (0, -5 if number == 0 else 1_700_000_000 + number))
        status = path.stat()
        found.append(Found(name, FILE, 0o640, status.st_size, status.st_mtime_ns))
    return found


@pytest.fixture(params=["here", "there"])
def pack_of(request, monkeypatch):
    """Makes a pack that this process reads, or a child of it."""
    monkeypatch.setattr("deploy.effects.packer.MANY", 1 if request.param == "there" else 10**6)
    packers = Packers()
    yield packers.pack
    packers.close()


def tar_that_the_box_makes(pack):
    return b"".join(tar_of(each.heads, each.contents) for each in pack) + END


def test_a_pack_is_a_tar_that_any_tar_reads(tmp_path, members, pack_of):
    root = tmp_path / "set"
    pack = pack_of(str(root), members, 0)
    data = tar_that_the_box_makes(pack)
    assert pack.sha256 == hashlib.sha256(data).hexdigest()
    (tmp_path / "pack.tar").write_bytes(data)
    with tarfile.open(tmp_path / "pack.tar") as tar:
        read = {each.name: tar.extractfile(each).read() for each in tar}
        assert {each.mode for each in tar.getmembers()} == {0o640}
    assert read == {each.path: (root / each.path).read_bytes() for each in members}
    for found, placed in zip(members, pack.placed, strict=True):
        content = data[placed.offset : placed.offset + placed.size]
        assert content == read[found.path] and placed.mtime == found.mtime
        assert placed.sha256 == hashlib.sha256(content).hexdigest()


def test_one_child_reads_several_packs_and_two_when_asked_ahead(tmp_path, members, monkeypatch):
    monkeypatch.setattr("deploy.effects.packer.MANY", 1)
    packers, root = Packers(), str(tmp_path / "set")
    packers.warm()
    for which in (members, members[:2]):
        there, here = packers.pack(root, which, 0), PackHere(root, which)
        assert list(there) == list(here)
        assert (there.sha256, there.placed) == (here.sha256, here.placed)
    assert len(packers._all) == 1
    two = [packers.pack(root, members, 0) for _ in range(2)]
    assert isinstance(two[0], PackThere) and len(packers._all) == 2
    assert [tar_that_the_box_makes(each) for each in two] == [
        tar_that_the_box_makes(PackHere(root, members))
    ] * 2
    packers.close()


def test_a_file_that_cannot_be_read_is_named_whoever_reads_it(tmp_path, members, pack_of):
    (tmp_path / "set" / "a").unlink()
    with pytest.raises(DataError, match="set/a: No such file") as caught:
        list(pack_of(str(tmp_path / "set"), members, 0))
    assert caught.value.hint == "mend it, or --exclude it"


def test_a_file_that_changed_once_since_the_scan_is_taken_as_it_is_now(tmp_path, members, pack_of):
    (tmp_path / "set" / "a").write_bytes(b"longer than before")
    pack = pack_of(str(tmp_path / "set"), members, 0)
    assert b"longer than before" in tar_that_the_box_makes(pack)
    assert pack.placed[0].size == 18 and pack.placed[0].mtime != members[0].mtime


def test_a_child_that_is_killed_is_an_error_and_no_hang(tmp_path, members, monkeypatch):
    monkeypatch.setattr("deploy.effects.packer.MANY", 1)
    packers = Packers()
    packers.warm()
    packers._all[0].close()
    with pytest.raises(TransferError, match="the process that reads the files was ended"):
        list(packers.pack(str(tmp_path / "set"), members, 0))
    packers.close()


def test_a_child_ends_with_the_process_that_asked_it(tmp_path):
    packers = Packers()
    packers.warm()
    child = packers._all[0]
    child.stdin.close()
    assert child._process.wait(10) == 0


@pytest.mark.parametrize("heads", [b"nonsense\0", b"644 5 0 a\0", b"644 -1 0 a\0", b""])
def test_what_does_not_fit_together_is_no_pack(heads):
    with pytest.raises(ValueError):
        tar_of(heads, b"four")


def test_a_pack_goes_on_where_its_last_whole_file_ends(tmp_path, members):
    ends, at = [0], 0
    for each in members:
        at += header_size(each.path, each.mtime // 10**9) + padded(each.size)
        ends.append(at)
    for there in range(0, at + 512, 100):
        assert boundary(members, there) == max(end for end in ends if end <= there)
    root = str(tmp_path / "set")
    whole = tar_that_the_box_makes(PackHere(root, members))
    assert len(whole) == at + len(END)
    pack = PackHere(root, members, ends[3])
    batches = list(pack)
    assert [each.files for each in batches] == [3, 3]
    assert batches[0].heads == batches[0].contents == b"" and batches[0].size > 0
    assert whole[: ends[3]] + tar_that_the_box_makes(batches[1:]) == whole
    assert pack.sha256 == hashlib.sha256(whole).hexdigest()
    assert not any(each.heads for each in PackHere(root, members, len(whole)))


def test_the_box_knows_of_a_pack_what_the_laptop_knows(tmp_path, members):
    pack, inventory = PackHere(str(tmp_path / "set"), members), Inventory()
    for batch in pack:
        tar_of(batch.heads, batch.contents, inventory)
    here = [in_pack(*each, "ab" * 32, True) for each in zip(members, pack.placed, strict=True)]
    there = [each._replace(pack="ab" * 32) for each in inventory.entries]
    assert there == [each.change[1] for each in here]
    told = [Known(("folder/", Entry("folder", FOLDER, 0o755))), *here, Known(("gone", None))]
    assert list(lines_told(told)) == [
        '+{"path": "folder", "type": "folder", "mode": 493}\n',
        f"*{'ab' * 32} {len(members)}\n",
        '-"gone"\n',
    ]


@pytest.fixture
def arrived(tmp_path):
    """A shelf that has taken a pack with two files, one of them with a name that leads out."""
    shelf = find_shelf(find_places({"folders": {"data": str(tmp_path)}}), "set", "")
    make_shelf(shelf)
    known = Arrived(shelf)
    members = [Entry(path, FILE, 0o600, 1, 0, "cd" * 32, "", 512) for path in ("good", "../bad")]
    known.part("ab" * 32, str(tmp_path / "part"), 4096, members)
    return known


def test_the_files_of_a_pack_are_told_once_each(arrived):
    assert [key for key, _ in arrived.next_of("ab" * 32, 1)] == ["good"]
    with pytest.raises(Refusal, match="has not arrived whole"):
        list(arrived.next_of("ab" * 32, 2))
    with pytest.raises(ValueError, match="unsafe path in a pack"):
        list(arrived.next_of("ab" * 32, 1))


def test_a_pack_that_has_not_come_has_no_files(arrived):
    with pytest.raises(Refusal, match="pack efefefefefef has not arrived whole"):
        list(arrived.next_of("ef" * 32, 1))
