"""Checkpoints appear whole or not at all; what can't be read is named and never touched."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.workload.kit import ROOT
from workload import checkpoint
from workload.errors import CheckpointError
from workload.saver import Saver

META = {"model": "bp", "arguments": {}, "best": None}


def tensors(value):
    return {"a/weights": np.full((3, 4), value, np.float32), "b": np.arange(5, dtype=np.int32)}


def put(checkpoints, step, value=None):
    """Publishes a checkpoint of `step` the way the saver does."""
    scratch = checkpoints.parent / "scratch" / checkpoint.folder_name(step)
    checkpoint.write(scratch, tensors(step if value is None else value), {**META, "step": step})
    return checkpoint.publish(scratch, checkpoints)


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "checkpoints"
    for step in (100, 200, 300):
        put(folder, step)
        for each in (tmp_path / "scratch").iterdir():
            for file in each.iterdir():
                file.unlink()
            each.rmdir()
    return folder


def cut_largest(folder, size):
    os.truncate(folder / "state.npz", size)


def test_what_is_read_is_what_was_written(store):
    found, meta = checkpoint.read(store / "step_00000200")
    assert meta["step"] == 200 and meta["schema"] == 2
    assert meta["state_sha256"] == checkpoint.digest(tensors(200))
    for name, wanted in tensors(200).items():
        np.testing.assert_array_equal(found[name], wanted)
        assert found[name].dtype == wanted.dtype


def test_sha256sum_reads_our_sums(store):
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=store / "step_00000300")
    assert done.returncode == 0
    cut_largest(store / "step_00000300", 100)
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=store / "step_00000300")
    assert done.returncode != 0


def test_equal_states_are_equal_bytes(tmp_path):
    for name in "xy":
        checkpoint.write(tmp_path / name, tensors(1), {**META, "step": 1})
    for file in ("state.npz", "meta.json", "SHA256SUMS"):
        assert (tmp_path / "x" / file).read_bytes() == (tmp_path / "y" / file).read_bytes()


def test_the_digest_sees_values_names_types_and_shapes():
    base = {"a": np.zeros(4, np.float32)}
    others = [
        {"a": np.full(4, np.float32(-0.0))},
        {"b": np.zeros(4, np.float32)},
        {"a": np.zeros(4, np.int32)},
        {"a": np.zeros((2, 2), np.float32)},
    ]
    digests = {checkpoint.digest(each) for each in [base, *others]}
    assert len(digests) == 5


def test_the_newest_whole_one_is_taken_in_each_case_of_damage(store):
    assert checkpoint.newest(store) == (store / "step_00000300", [])
    cut_largest(store / "step_00000300", 50)
    found, passed = checkpoint.newest(store)
    assert found == store / "step_00000200"
    assert len(passed) == 1 and "step_00000300 is damaged: state.npz does not match" in passed[0]


def test_a_pointer_to_nothing_and_a_missing_pointer_are_said(store):
    (store / "LATEST").write_text("step_00000400\n")
    found, passed = checkpoint.newest(store)
    assert found.name == "step_00000300" and "step_00000400, which is not there" in passed[0]
    (store / "LATEST").unlink()
    found, passed = checkpoint.newest(store)
    assert found.name == "step_00000300" and "LATEST is missing" in passed[0]


def test_the_pointer_is_a_hint_not_proof(store):
    (store / "LATEST").write_text("step_00000100\n")
    assert checkpoint.newest(store)[0].name == "step_00000300"


@pytest.mark.parametrize("damage", ["sums", "meta", "state", "empty sums", "garbage sums"])
def test_all_damaged_is_an_error_that_names_each(store, damage):
    for folder in store.glob("step_*"):
        if damage == "state":
            cut_largest(folder, 10)
        elif damage.endswith(" sums"):
            (folder / "SHA256SUMS").write_text("" if damage == "empty sums" else "hello\n")
        else:
            (folder / {"sums": "SHA256SUMS", "meta": "meta.json"}[damage]).unlink()
    with pytest.raises(CheckpointError) as error:
        checkpoint.newest(store)
    for step in (100, 200, 300):
        assert f"step_{step:08d} is damaged" in str(error.value)


def test_no_folder_and_no_pointer_is_a_new_run(tmp_path):
    assert checkpoint.newest(tmp_path / "none") == (None, [])


def test_a_damaged_one_in_the_way_is_kept(store):
    cut_largest(store / "step_00000300", 10)
    _, said = put(store, 300, value=7)
    assert "kept as step_00000300.damaged-1" in said
    assert (store / "step_00000300.damaged-1" / "state.npz").stat().st_size == 10
    assert checkpoint.read(store / "step_00000300")[0]["a/weights"][0, 0] == 7
    assert checkpoint.steps(store) == [100, 200, 300]


def test_a_copy_that_comes_out_wrong_is_not_published(store, monkeypatch):
    def torn(source, target):
        target.write_bytes(source.read_bytes()[:-1])

    monkeypatch.setattr(checkpoint, "_copy_synced", torn)
    with pytest.raises(OSError, match="after the copy"):
        put(store, 400)
    assert checkpoint.steps(store) == [100, 200, 300]
    assert not list(store.glob(".part-*"))
    assert (store / "LATEST").read_text() == "step_00000300\n"


def test_the_dense_layer_of_the_first_schema_is_turned(tmp_path, monkeypatch):
    """It had a column for each unit: a run of that time goes on."""
    columns = np.arange(6, dtype=np.float32).reshape(3, 2)
    moment = "dense/weights/adam_m"
    old = {"dense/weights": columns, moment: columns + 1, "output/weights": columns}
    monkeypatch.setattr(checkpoint, "SCHEMA", 1)
    checkpoint.write(tmp_path / "step_00000100", old, {**META, "step": 100})
    monkeypatch.undo()
    found, _ = checkpoint.read(tmp_path / "step_00000100")
    np.testing.assert_array_equal(found["dense/weights"], columns.T)
    np.testing.assert_array_equal(found[moment], columns.T + 1)
    np.testing.assert_array_equal(found["output/weights"], columns)


def test_a_newer_schema_is_refused(store):
    meta = store / "step_00000300" / "meta.json"
    text = meta.read_text().replace('"schema": 2', '"schema": 3')
    meta.write_text(text)
    (store / "step_00000300" / "SHA256SUMS").write_text(
        f"{hashlib.sha256(text.encode()).hexdigest()}  meta.json\n"
    )
    with pytest.raises(CheckpointError, match="newer version"):
        checkpoint.read(store / "step_00000300")


ROTATION = [
    # found, best, keep_last, keep_every → removed
    ([1, 2, 3], None, 3, 0, []),
    ([1, 2, 3, 4], None, 3, 0, [1]),
    ([1, 2, 3, 4], 1, 3, 0, []),
    ([10, 20, 30, 40, 50], 20, 2, 30, [10]),
    ([10, 20, 30, 40, 50], None, 1, 0, [10, 20, 30, 40]),
    ([], None, 3, 0, []),
]


@pytest.mark.parametrize("found,best,last,every,removed", ROTATION)
def test_rotation(found, best, last, every, removed):
    plan = checkpoint.rotation(found, best, last, every)
    assert [step for step, _ in plan] == sorted(found)
    assert [step for step, why in plan if why.startswith("remove")] == removed


@pytest.fixture
def saver(store, tmp_path):
    made = Saver(store, tmp_path, keep_last=2, keep_every=0)
    yield made
    made.close()


def meta(step, best=None):
    return {**META, "step": step, "best": best and {"step": best, "accuracy": 0.9}}


def test_the_saver_publishes_points_and_rotates(saver, store):
    saver.start(best=100)
    for step in (400, 500):
        saver.save(step, tensors(step), meta(step, best=400))
        saver.wait()
    assert checkpoint.steps(store) == [400, 500]
    assert (store / "LATEST").read_text() == "step_00000500\n"
    assert (store / "best").read_text() == "step_00000400\n"


def test_the_saver_never_removes_a_damaged_one(saver, store):
    cut_largest(store / "step_00000100", 10)
    saver.start(best=None)
    for step in (400, 500, 600):
        saver.save(step, tensors(step), meta(step))
        saver.wait()
    assert checkpoint.steps(store) == [100, 500, 600]


def test_leftovers_of_a_killed_save_are_swept(saver, store):
    (store / ".part-step_00000400").mkdir()
    (store / ".part-step_00000400" / "state.npz").write_bytes(b"half")
    saver.start(best=None)
    assert not list(store.glob(".part-*"))


def test_a_waiting_snapshot_gives_way_to_the_next_unless_it_is_the_best(saver, store, monkeypatch):
    import threading

    gate, real = threading.Event(), checkpoint.publish

    def slow(*arguments):
        gate.wait(10)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "publish", slow)
    saver.keep_last = 10
    saver.start(best=None)
    for step in (400, 500, 600):  # 400 is being published, 500 gives way
        saver.save(step, tensors(step), meta(step))
        while step == 400 and saver._waiting:
            pass
    gate.set()
    saver.wait()
    assert checkpoint.steps(store) == [100, 200, 300, 400, 600]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_leaves_the_old_checkpoint_and_nothing_half(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "gpubox-test", disk])
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    saver = Saver(disk / "checkpoints", tmp_path, keep_last=9, keep_every=0)
    try:
        saver.start(best=None)
        for step in (1, 2):
            big = {"w": np.zeros(150_000, np.float32)}
            saver.save(step, big, meta(step))
            if step == 1:
                saver.wait()
        with pytest.raises(OSError, match="No space left"):
            saver.wait()
        assert checkpoint.newest(disk / "checkpoints") == (disk / "checkpoints/step_00000001", [])
        assert not list((disk / "checkpoints").glob(".part-*"))
    finally:
        saver.close()
        subprocess.run(["umount", disk], check=True)


def test_reading_needs_no_tensorflow():
    probe = "import sys; from workload import checkpoint, saver; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n"
