"""Archives: what is in them comes out right, nothing lands outside, damage is said and leaves nothing."""

import gzip
import hashlib
import io
import lzma
import struct
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from deploy.effects import archive
from deploy.effects.archive import look_into
from deploy.effects.scan import scan_archive
from deploy.errors import DataError
from deploy.onbox.archives import unpack_archive
from deploy.onbox.manifest import ARCHIVE, Entry
from deploy.onbox.refusal import Refusal
from tests.data.conftest import small_files, tree_of

MEMBERS = [("a.txt", b"1"), ("deep/er/b.txt", b"22"), ("deep/c", b"")]


def tar_bytes(*members, mode="w"):
    """A tar of (name, kind, content or target, mode) members."""
    out = io.BytesIO()
    kinds = {"d": tarfile.DIRTYPE, "s": tarfile.SYMTYPE, "h": tarfile.LNKTYPE, "c": tarfile.CHRTYPE}
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, kind, *rest in members:
            info = tarfile.TarInfo(name)
            info.mode = rest[1] if len(rest) > 1 else 0o644
            if kind == "f":
                info.size = len(rest[0])
                tar.addfile(info, io.BytesIO(rest[0]))
            else:
                info.type, info.linkname = kinds[kind], rest[0] if rest else ""
                tar.addfile(info)
    return out.getvalue()


def zip_bytes(entries, system=0, flags=0):
    """A zip made by hand, so that names are any bytes and no flag is set unasked."""
    out, directory = b"", b""
    for name, data in entries:
        crc, at = zlib.crc32(data), len(out)
        common = struct.pack(
            "<HHHHIIIHH", flags, 0, 0, 0x21, crc, len(data), len(data), len(name), 0
        )
        out += struct.pack("<IH", 0x04034B50, 20) + common + name + data
        directory += struct.pack("<IBBH", 0x02014B50, 20, system, 20) + common
        directory += struct.pack("<HHHII", 0, 0, 0, 0, at) + name
    count = len(entries)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, len(directory), len(out), 0)
    return out + directory + end


def plain_members():
    return [(name, "f", content) for name, content in MEMBERS]


def unpacked(tmp_path, name, content, zip_names=""):
    """What comes out of an archive, by the laptop's look at it and the box's unpacking."""
    archive, root = tmp_path / name, tmp_path / "root"
    archive.write_bytes(content)
    root.mkdir()
    scan_archive(str(archive), tmp_path / "scan")
    sha256 = hashlib.sha256(content).hexdigest()
    entry = Entry(name, ARCHIVE, size=len(content), sha256=sha256)
    unpack_archive(str(archive), entry, str(root), zip_names, str(tmp_path / "members"))
    return tree_of(root)


def files_in(tree):
    return {name: what[1] for name, what in tree.items() if what[0] == "file"}


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "tar.xz", "tar.zst", "zip"])
def test_each_kind_comes_out_whole(box, tmp_path, ending):
    if ending == "zip":
        content = zip_bytes([(name.encode(), data) for name, data in MEMBERS])
    elif ending == "tar.zst":
        content = subprocess.run(
            ["zstd", "-qc"], input=tar_bytes(*plain_members()), capture_output=True, check=True
        ).stdout
    else:
        mode = "w:" + ending[-2:] if ending != "tar" else "w"
        content = tar_bytes(*plain_members(), mode=mode)
    (tmp_path / f"set.{ending}").write_bytes(content)
    box.upload(tmp_path / f"set.{ending}")
    out = tree_of(box.stage()["path"])
    assert files_in(out) == {name.encode(): data for name, data in MEMBERS}
    assert set(box.visible()) == {f"set.{ending}".encode()}  # up there it stays one object


HOSTILE = {
    "dotdot": [("../esc", "f", b"x")],
    "absolute": [("/tmp/gpubox-esc", "f", b"x")],
    "through a link": [("ln", "s", "/tmp"), ("ln/gpubox-esc", "f", b"x")],
    "through a link inside": [("sub", "d"), ("ln", "s", "sub"), ("ln/x", "f", b"x")],
    "link out": [("ln", "s", "../../x")],
    "hard link out": [("h", "h", "../../etc/hostname")],
    "hard link named outside": [("a", "f", b"x"), ("../esc", "h", "a")],
    "hard link to nothing": [("h", "h", "nowhere")],
    "device": [("null", "c")],
    "reserved": [(".gpubox/current", "f", b"x")],
    "file as folder": [("a", "f", b"x"), ("a/b", "f", b"x")],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_member_that_would_leave_is_refused(tmp_path, case):
    with pytest.raises(Refusal, match="set.tar: .*nothing of it was kept"):
        unpacked(tmp_path, "set.tar", tar_bytes(("good", "f", b"1"), *HOSTILE[case]))
    assert not any(b"esc" in name for name in tree_of(tmp_path))
    assert not Path("/tmp/gpubox-esc").exists()


@pytest.mark.parametrize("case", HOSTILE)
def test_it_is_refused_on_the_laptop_already(tmp_path, case):
    path = tmp_path / "set.tar"
    path.write_bytes(tar_bytes(("good", "f", b"1"), *HOSTILE[case]))
    with pytest.raises(DataError, match="set.tar: .*nothing of it was kept"):
        looked_into(path)


def looked_into(path, zip_names=""):
    return look_into(str(path), zip_names, lambda count: None)


def test_nothing_of_a_hostile_archive_goes_up(box, tmp_path):
    (tmp_path / "set.tar.gz").write_bytes(tar_bytes(*HOSTILE["dotdot"], mode="w:gz"))
    with pytest.raises(DataError, match="outside"):
        box.upload(tmp_path / "set.tar.gz")
    assert not (box.data / "set").exists()


def test_an_archive_is_looked_into_once(box, tmp_path, monkeypatch):
    (tmp_path / "set.tar").write_bytes(tar_bytes(*plain_members()))
    box.upload(tmp_path / "set.tar")
    monkeypatch.setattr(archive, "look_into", None)
    box.upload(tmp_path / "set.tar", name="other")


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.xz", "tar.zst", "zip"])
def test_names_that_some_systems_take_for_one_are_found_in_archives(tmp_path, ending):
    names = ["Cat/1.png", "cat/2.png", "dog/a.png", "dog/A.png", "caf\u00e9", "cafe\u0301", "one"]
    path = tmp_path / f"set.{ending}"
    content = tar_bytes(*[(name, "f", b"x") for name in names])
    if ending == "zip":
        content = zip_bytes([(name.encode(), b"x") for name in names], flags=0x800)
    elif ending == "tar.gz":
        content = gzip.compress(content)
    elif ending == "tar.xz":
        content = lzma.compress(content)
    elif ending == "tar.zst":
        content = subprocess.run(["zstd", "-qc"], input=content, capture_output=True).stdout
    path.write_bytes(content)
    found = looked_into(path)
    pairs = [("Cat", "cat"), ("dog/a.png", "dog/A.png"), ("caf\u00e9", "cafe\u0301")]
    assert (found.files, found.bytes, found.alike) == (7, 7, pairs)


def test_a_hard_link_in_an_archive_of_the_folder_itself_is_kept(tmp_path):
    content = tar_bytes(("./a", "f", b"x"), ("./b", "h", "./a"))
    assert files_in(unpacked(tmp_path, "set.tar", content)) == {b"a": b"x", b"b": b"x"}


def test_a_refused_archive_leaves_nothing_staged(box, tmp_path, monkeypatch):
    (tmp_path / "set.tar").write_bytes(tar_bytes(("good", "f", b"1"), *HOSTILE["dotdot"]))
    monkeypatch.setattr(archive, "can_look_into", lambda path: False)
    box.upload(tmp_path / "set.tar")
    with pytest.raises(DataError, match="outside"):
        box.stage()
    assert tree_of(box.input).keys() <= {b".gpubox", *leftovers(box)}


def leftovers(box):
    """Journals and notes may stay; a staged folder or a part of one may not."""
    kept = (b".journal", b".members", b".used")
    return {name for name in tree_of(box.input) if name.endswith(kept)}


def test_modes_that_give_rights_are_not_taken_over(tmp_path):
    unpacked(tmp_path, "set.tar", tar_bytes(("su", "f", b"#!/bin/sh\n", 0o4777)))
    assert (tmp_path / "root" / "su").stat().st_mode & 0o7000 == 0


def test_odd_names_in_a_tar_come_out_as_they_are(tmp_path):
    names = ["-rf", "a\nb.png", "sp ace$(touch pwn).png", "bad\udcc3(.png", "A.png", "a.png"]
    raw = [name.encode("utf-8", "surrogateescape") for name in names]
    content = tar_bytes(*[(name, "f", name.encode("utf-8", "surrogateescape")) for name in names])
    assert files_in(unpacked(tmp_path, "set.tar", content)) == {name: name for name in raw}


ZIPS = {
    "gbk": (
        [("数据/猫.png".encode("gbk"), b"x"), ("功能".encode("gbk"), b"y")],
        {},
        {"数据/猫.png", "功能"},
    ),
    "dos": ([(b"train\\cat\\1.png", b"x")], {}, {"train/cat/1.png"}),
    "unix keeps": ([(b"a\\b", b"x")], {"system": 3}, {"a\\b"}),
    "flag": ([("猫.png".encode(), b"x")], {"flags": 0x800}, {"猫.png"}),
    "utf8 unflagged": ([("猫.png".encode(), b"x")], {}, {"猫.png"}),
    "cp437": ([("é.png".encode("cp437"), b"x")], {}, {"é.png"}),
    "mac": (
        [(b"t/c.png", b"x"), (b"__MACOSX/t/._c.png", b"x"), (b"t/.DS_Store", b"")],
        {},
        {"t/c.png"},
    ),
}


@pytest.mark.parametrize("case", ZIPS)
def test_names_in_a_zip_come_out_as_they_were_meant(tmp_path, case):
    entries, how, expected = ZIPS[case]
    out = unpacked(tmp_path, "set.zip", zip_bytes(entries, **how))
    assert {name.decode() for name in files_in(out)} == expected


def test_an_encoding_that_the_user_names_is_taken(tmp_path):
    content = zip_bytes([("データ.png".encode("shift_jis"), b"x")])
    out = unpacked(tmp_path, "set.zip", content, zip_names="shift_jis")
    assert {name.decode() for name in files_in(out)} == {"データ.png"}


def test_zip_that_climbs_out_is_refused(tmp_path):
    with pytest.raises(Refusal, match="outside"):
        unpacked(tmp_path, "set.zip", zip_bytes([(b"..\\esc_z2", b"x")]))
    assert not any(b"esc_z" in name for name in tree_of(tmp_path))


def test_a_bomb_is_stopped(tmp_path):
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(200 << 20))
    with pytest.raises(Refusal, match="100 times"):
        unpacked(tmp_path, "set.zip", bomb.getvalue())
    assert (tmp_path / "root" / "zeros").stat().st_size < 100 << 20
    with pytest.raises(DataError, match="100 times"):
        looked_into(tmp_path / "set.zip")


def test_a_bomb_in_a_stream_is_stopped_as_it_unrolls(tmp_path):
    zeros = tar_bytes(("a", "f", b"x"), *[(f"z{i}", "f", bytes(40 << 20)) for i in range(4)])
    (tmp_path / "set.tar.gz").write_bytes(gzip.compress(zeros))
    with pytest.raises(DataError, match="'z1' brings it to over 100 times"):
        looked_into(tmp_path / "set.tar.gz")


def test_a_zip_with_a_password_is_said_beforehand(tmp_path):
    (tmp_path / "set.zip").write_bytes(zip_bytes([(b"a", b"x")], flags=1))
    with pytest.raises(DataError, match="'a' needs a password"):
        looked_into(tmp_path / "set.zip")


def damaged_archives():
    whole = tar_bytes(*plain_members(), ("big", "f", bytes(range(256)) * 400))
    zipped = zip_bytes([(name.encode(), data) for name, data in MEMBERS])
    flipped = bytearray(zipped)
    flipped[31 + 5] ^= 1
    return {
        "tar cut": ("set.tar", whole[:2048]),
        "tar cut inside": ("set.tar", whole[:5000]),
        "gz cut": ("set.tar.gz", gzip.compress(whole)[:-40]),
        "zip cut": ("set.zip", zipped[:-30]),
        "zip flipped": ("set.zip", bytes(flipped)),
        "html": ("set.zip", b"<!DOCTYPE html><html>404</html>" * 40),
        "gz named tar": ("set.tar", gzip.compress(whole)),
        "tar named zip": ("set.zip", whole),
        "empty": ("set.tar", b""),
        "no files": ("set.tar", tar_bytes(("d", "d"))),
        "text in gz": ("set.tar.gz", gzip.compress(b"hello" * 1000)),
    }


@pytest.mark.parametrize("case", damaged_archives())
def test_damage_is_a_clear_error(tmp_path, case):
    name, content = damaged_archives()[case]
    with pytest.raises((DataError, Refusal)) as no:
        unpacked(tmp_path, name, content)
    assert getattr(no.value, "kind", "DataError") == "DataError" and "\n" not in no.value.message
    if case not in ("zip flipped", "html", "gz named tar", "tar named zip", "empty"):
        with pytest.raises(DataError):  # before it goes up; a zip's contents are not read there
            looked_into(tmp_path / name)


def test_a_staged_archive_is_verified_by_what_came_out(box, tmp_path):
    (tmp_path / "set.tar").write_bytes(tar_bytes(*plain_members()))
    box.upload(tmp_path / "set.tar")
    path = box.stage()["path"]
    assert box.stage(verify=True)["already"]
    with open(path + "/a.txt", "r+b") as file:
        file.write(b"9")
    assert not box.stage(verify=True)["already"]
    assert files_in(tree_of(path))[b"a.txt"] == b"1"


def test_a_folder_that_happens_to_hold_an_archive_keeps_it_as_a_file(box, tmp_path):
    small_files(tmp_path / "set", 3)
    (tmp_path / "set" / "inner.zip").write_bytes(zip_bytes([(b"x", b"y")]))
    box.upload(tmp_path / "set")
    assert tree_of(box.stage()["path"]) == tree_of(tmp_path / "set")
