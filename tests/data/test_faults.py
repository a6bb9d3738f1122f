"""What may go wrong on the way: never half, never silent, and the same command mends it."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.errors import KitError, LinkLost, NoSpace, VerifyError
from deploy.plan.config import DataSet
from deploy.verbs.stage import stage_set
from deploy.verbs.upload import upload_set
from tests.data.conftest import LocalBox, small_files, tree_of

ROOT = Path(__file__).resolve().parents[2]
UPLOAD = """
import sys
from pathlib import Path
from tests.data.conftest import LocalBox
LocalBox(Path(sys.argv[1])).upload(sys.argv[2])
"""
STAGE = UPLOAD.replace("upload(sys.argv[2])", "stage()")


@pytest.fixture
def mixed(tmp_path):
    """Packed small files and one large one."""
    small_files(tmp_path / "set", 1200)
    (tmp_path / "set" / "large.bin").write_bytes(random.Random(5).randbytes(30 << 20))
    return tmp_path / "set"


def in_a_process(script, *words):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        cwd=ROOT,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )


def box_side(pid):
    """The box's program below a laptop's process: its zipapp."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    for child in children.split():
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if b".pyz\0receive" in words or b".pyz\0stage" in words:
            return int(child)
        found = box_side(child)
        if found:
            return found
    return None


def whole_or_nothing(box, source):
    """No version yet, or one whose every content stands there."""
    if (box.data / "set" / ".gpubox" / "current").exists():
        answer = box.agent.call("data_check", name="set")
        assert answer["damaged"] == []


def change(source, turn):
    """Something new to send, small and large."""
    noise = random.Random(turn)
    (source / "large.bin").write_bytes(noise.randbytes(30 << 20))
    for each in list((source / f"class{turn % 7}").iterdir())[:40]:
        each.write_bytes(noise.randbytes(2000))


def test_killed_at_twenty_moments_on_either_side(box, mixed):
    moments = random.Random(2026)
    process = in_a_process(UPLOAD, box.folder, mixed)
    wait_for(lambda: box_side(process.pid))
    began = time.monotonic()
    process.wait()
    usual = time.monotonic() - began
    shutil.rmtree(box.data / "set")
    killed = 0
    for turn in range(40):
        process = in_a_process(UPLOAD, box.folder, mixed)
        wait_for(lambda: box_side(process.pid) or process.poll() is not None)  # noqa: B023
        time.sleep(moments.uniform(0.0, 0.8) * usual)
        victim = process.pid if turn % 2 else box_side(process.pid)
        if process.poll() is None and victim:
            os.kill(victim, signal.SIGKILL)
            killed += 1
        if process.wait() == 0:
            change(mixed, turn)
        whole_or_nothing(box, mixed)
        if killed == 20:
            break
    assert killed >= 10  # else the moments were no moments of an upload
    box.upload(mixed)
    assert tree_of(box.stage()["path"]) == tree_of(mixed)


def test_staging_killed_at_random_moments_goes_on(box, mixed):
    box.upload(mixed)
    moments, killed = random.Random(7), 0
    for _ in range(8):
        process = in_a_process(STAGE, box.folder)
        wait_for(lambda: box_side(process.pid) or process.poll() is not None)  # noqa: B023
        time.sleep(moments.uniform(0.0, 0.5))
        victim = box_side(process.pid)
        if victim:
            os.kill(victim, signal.SIGKILL)
            killed += 1
        process.wait()
        staged = [
            p for p in (box.input / ".gpubox").glob("set@*") if p.is_dir() and "." not in p.name
        ]
        assert all(tree_of(each) == tree_of(mixed) for each in staged)
        for each in staged:
            shutil.rmtree(each)
    assert killed >= 3
    assert tree_of(box.stage()["path"]) == tree_of(mixed)


def test_a_large_file_goes_on_inside(box, tmp_path, monkeypatch):
    source = tmp_path / "set"
    source.mkdir()
    (source / "large.bin").write_bytes(random.Random(5).randbytes(40 << 20))
    from deploy.effects import upload

    blocks = upload.file_blocks

    def broken(root, found):
        for at, block in enumerate(blocks(root, found)):
            if at == 30:
                raise KeyboardInterrupt
            yield block

    monkeypatch.setattr(upload, "file_blocks", broken)
    with pytest.raises(KeyboardInterrupt):
        box.upload(source)
    monkeypatch.setattr(upload, "file_blocks", blocks)
    again = box.upload(source)
    assert again["sent_bytes"] < 20 << 20  # what was queued had not gone out yet
    assert box.visible() == tree_of(source)


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.sshd
@pytest.mark.slow
def test_a_frozen_link_is_noticed_and_the_same_command_goes_on(sshd, mixed, monkeypatch):
    from deploy.effects import session

    monkeypatch.setattr(session, "SILENCE", 6.0)
    server = sshd()
    desk = server.desk()
    with desk.open("box") as box:
        box.call("facts")
        started = session.Session.part

        def freezes(self, *words):
            server.freeze()
            return started(self, *words)

        monkeypatch.setattr(session.Session, "part", freezes)
        with pytest.raises(LinkLost):
            upload_set(desk, box, "set", DataSet(str(mixed)))
    monkeypatch.setattr(session.Session, "part", started)
    server.cut()
    with desk.open("box") as box:
        upload_set(desk, box, "set", DataSet(str(mixed)))
        assert tree_of(stage_set(desk, box, "set")["path"]) == tree_of(mixed)


def flip(path, at=-2000):
    """One byte, size and mtime kept."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("what", ["packed", "plain"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_damage_on_the_box_is_found_and_mended(box, mixed, what, how):
    box.upload(mixed)
    pack = next((box.data / "set" / ".gpubox" / "packs").glob("*.tar"))
    victim = pack if what == "packed" else box.data / "set" / "large.bin"
    if how == "flipped":
        flip(victim)
    elif how == "cut":
        os.truncate(victim, victim.stat().st_size // 2)
    else:
        victim.unlink()
    with pytest.raises(VerifyError, match="does not have the checksum"):
        box.stage()
    assert not list(box.input.glob("set"))
    box.upload(mixed)
    assert tree_of(box.stage()["path"]) == tree_of(mixed)


def test_a_staged_file_that_was_changed_is_staged_anew(box, mixed):
    path = Path(box.upload(mixed) and box.stage()["path"])
    flip(path / "class1" / "00001.png", -1)
    assert box.stage()["already"]  # not looked at …
    assert not box.stage(verify=True)["already"]  # … unless asked to
    assert tree_of(path) == tree_of(mixed)


def test_after_a_boot_a_copy_that_was_not_synced_is_read_again(box, mixed):
    path = Path(box.upload(mixed) and box.stage()["path"])
    wait_for(lambda: Path(f"{path}.synced").exists())
    Path(f"{path}.synced").unlink()
    Path(f"{path}.boot").write_text("another boot")
    assert box.stage()["already"]
    Path(f"{path}.boot").write_text("another boot")
    wait_for(lambda: Path(f"{path}.synced").exists())
    Path(f"{path}.synced").unlink()
    (path / "class1" / "00001.png").write_bytes(b"")
    assert not box.stage()["already"]
    assert tree_of(path) == tree_of(mixed)


def test_a_file_that_is_written_to_while_it_is_read_is_named(box, mixed, monkeypatch):
    from deploy.effects import upload

    blocks = upload.file_blocks

    def growing(root, found):
        with open(os.path.join(root, found.path), "ab") as file:
            file.write(b"more")
        yield from blocks(root, found)

    monkeypatch.setattr(upload, "file_blocks", growing)
    with pytest.raises(KitError, match=r"large\.bin changes while it is read"):
        box.upload(mixed)
    assert not (box.data / "set" / ".gpubox" / "current").exists()


# ---- full file systems -----------------------------------------------------------------------


@pytest.fixture
def tight(tmp_path):
    """`tight(options)` mounts a small tmpfs and returns it."""
    mounted = []

    def mount(options):
        if os.getuid() != 0:
            pytest.skip("mounting a small file system needs root")
        path = tmp_path / f"tight{len(mounted)}"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def boxed(tmp_path, data=None, fast=None):
    (tmp_path / "box").mkdir()
    box = LocalBox(tmp_path / "box")
    box.agent.folders.update({"data": str(data or box.data), "input": str(fast or box.input)})
    return box


@pytest.mark.slow
def test_too_few_bytes_on_the_data_disk_is_said_beforehand(tight, tmp_path):
    disk = tight("size=20m")
    box = boxed(tmp_path, data=disk)
    small_files(tmp_path / "set", 100, largest=1 << 20)
    with pytest.raises(NoSpace, match=str(disk)):
        box.upload(tmp_path / "set")
    assert not (disk / "set" / ".gpubox" / "current").exists()


@pytest.mark.slow
def test_too_few_inodes_on_the_data_disk_is_said_beforehand(tight, tmp_path):
    disk = tight("size=20m,nr_inodes=50")
    box = boxed(tmp_path, data=disk)
    small_files(tmp_path / "set", 100)
    with pytest.raises(NoSpace, match="inodes"):
        box.upload(tmp_path / "set", layout="files")
    box.upload(tmp_path / "set", layout="packed")  # as the hint says


@pytest.mark.slow
def test_a_disk_that_fills_up_meanwhile_leaves_nothing_half_made(tight, tmp_path, monkeypatch):
    from deploy.verbs import uploading

    monkeypatch.setattr(uploading, "must_fit", lambda *words: None)
    disk = tight("size=20m")
    box = boxed(tmp_path, data=disk)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "large").write_bytes(random.Random(1).randbytes(40 << 20))
    with pytest.raises(NoSpace, match=str(disk)):
        box.upload(tmp_path / "set")
    own = disk / "set" / ".gpubox"
    assert not (own / "current").exists() and not list((own / "incoming").iterdir())
    subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
    box.upload(tmp_path / "set")
    assert (disk / "set" / "large").read_bytes() == (tmp_path / "set" / "large").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("options", ["size=2m", "size=64m,nr_inodes=60"])
def test_a_fast_disk_that_is_too_small_is_said_beforehand(tight, tmp_path, options):
    disk = tight(options)
    box = boxed(tmp_path, fast=disk)
    small_files(tmp_path / "set", 1000)
    box.upload(tmp_path / "set")
    with pytest.raises(NoSpace, match=str(disk)):
        box.stage()
    assert not list(disk.glob("set"))


@pytest.mark.slow
def test_old_versions_leave_the_fast_disk_unless_a_run_uses_them(tight, tmp_path):
    disk = tight("size=22m")
    box = boxed(tmp_path, fast=disk)
    ids = []
    for seed in range(3):
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        small_files(tmp_path / "set", 1500, seed=seed)  # about 8 MiB staged
        ids.append(box.upload(tmp_path / "set")["version"])
        if seed == 0:
            run = box.data / "runs" / "one"
            run.mkdir(parents=True)
            (run / "run.json").write_text(json.dumps({"data": {"name": "set", "version": ids[0]}}))
            (run / "state.json").write_text(json.dumps({"state": "interrupted"}))
        box.stage()
    there = {
        each.name.partition("@")[2] for each in (disk / ".gpubox").glob("set@*") if each.is_dir()
    }
    assert there == {ids[0], ids[2]}
