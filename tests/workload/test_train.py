"""How a run starts, resumes and ends: each end has its exit code and its one line."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.workload.kit import ROOT, idx_bytes, wait_until, write_set
from workload import checkpoint, errors

pytestmark = pytest.mark.tensorflow

BP = ("bp", "--batch", 20, "--hidden", 30, "--pixel-scale", 255)
CNN = ("cnn", "--batch", 20, "--conv1", 4, "--conv2", 4, "--dense", 16, "--validation", 100)


def result(run):
    return json.loads((run.output / "result.json").read_text())


def progress(run):
    return json.loads((run.output / "progress.json").read_text())


def left(output):
    """When each file of a run was last written; the lock of whoever looks at it is not of the run."""
    files = (path for path in output.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path: path.stat().st_mtime_ns for path in files}


def test_a_run_leaves_what_the_contract_says_and_again_does_nothing(workload):
    code, out, err = workload(*BP, "--steps", 600, "--save-every", 200, "--keep-last", 2)
    assert (code, err) == (0, [])
    best = int((workload.checkpoints / "best").read_text().strip().removeprefix("step_"))
    assert set(checkpoint.steps(workload.checkpoints)) == {500, 600, best}
    assert (workload.checkpoints / "LATEST").read_text() == "step_00000600\n"
    found, state = result(workload), progress(workload)
    assert found["step"] == 600 and found["test_accuracy"] > 0.9
    assert np.sum(found["confusion"]) == 600 and found["device"]["kind"] == "cpu"
    assert state["phase"] == "done" and state["step"] == state["checkpoint_step"] == 600
    rows = [json.loads(x) for x in (workload.output / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [500, 600]
    assert list((workload.output / "tensorboard").glob("events.out.tfevents.*"))
    before = left(workload.output)
    code, out, _ = workload(*BP, "--steps", 600, "--save-every", 200, "--keep-last", 2)
    assert code == 0 and "already finished: step 600" in out
    assert before == left(workload.output)


def test_more_steps_go_on_from_the_end(workload):
    assert workload(*BP, "--steps", 100)[0] == 0
    code, out, _ = workload("train", "--model", *BP, "--steps", 150)
    assert code == 0 and "resumed from step_00000100" in out
    assert result(workload)["step"] == 150


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_resumable(workload, number):
    pid = workload.start(*CNN, "--steps", 1_000_000, "--save-every", 0)
    workload.wait_for("\nstep ")
    os.kill(pid, number)
    code, _, err = workload.end()
    assert code == errors.INTERRUPTED
    assert err[0].startswith(f"error: stopped by {number.name}; the same command resumes from step")
    step = progress(workload)["step"]
    folder, passed = checkpoint.newest(workload.checkpoints)
    assert folder.name == checkpoint.folder_name(step) and passed == []
    code, out, _ = workload(*CNN, "--steps", step + 10)
    assert code == 0 and f"resumed from {folder.name}" in out


def test_other_arguments_are_refused_by_name(workload):
    assert workload(*BP, "--steps", 20)[0] == 0
    code, _, err = workload(*BP, "--steps", 40, "--l2", "0.5", "--seed", 9)
    assert code == errors.CHANGED
    assert "--l2 was 0.01, is 0.5" in err[0] and "--seed was 1, is 9" in err[0]
    code, _, err = workload(*CNN, "--steps", 40)
    assert code == errors.CHANGED and "the model was bp, is cnn" in err[0]


def test_images_of_another_kind_are_refused_on_resume(workload):
    assert workload(*BP, "--steps", 20)[0] == 0
    write_set(workload.data, np.zeros((600, 9, 9), np.uint8), np.arange(600, dtype=np.uint8) % 4)
    code, _, err = workload(*BP, "--steps", 40)
    assert code == errors.CHANGED and "images of [9, 9, 1] in 4 classes" in err[0]


def test_threads_are_taken_from_the_checkpoint(workload):
    assert workload(*BP, "--steps", 20, "--intra-threads", 1)[0] == 0
    assert workload(*BP, "--steps", 40)[0] == 0
    assert result(workload)["device"]["intra_threads"] == 1
    code, _, err = workload(*BP, "--steps", 60, "--intra-threads", 2)
    assert code == 0 and "--intra-threads was 1, is 2" in err[0]


def damaged(run, case):
    """The four cases of broken checkpoints."""
    folders = sorted(run.checkpoints.glob("step_*"))
    if case == "newest_absent":
        shutil.rmtree(folders[-1])
    elif case == "newest_half":
        os.truncate(folders[-1] / "state.npz", 1000)
    elif case == "pointer_missing":
        (run.checkpoints / "LATEST").unlink()
    else:
        for folder in folders:
            os.truncate(folder / "state.npz", 10)
    return folders


@pytest.mark.parametrize(
    "case,resumed,said",
    [
        ("newest_absent", 40, "LATEST names step_00000060, which is not there"),
        ("newest_half", 40, "step_00000060 is damaged: state.npz does not match its checksum"),
        ("pointer_missing", 60, "LATEST is missing"),
    ],
)
def test_the_newest_whole_checkpoint_is_taken_and_the_loss_said(workload, case, resumed, said):
    assert workload(*BP, "--steps", 60, "--save-every", 20)[0] == 0
    damaged(workload, case)
    code, out, err = workload(*BP, "--steps", 80, "--save-every", 20)
    assert code == 0 and f"resumed from step_{resumed:08d}" in out
    assert len(err) == 1 and said in err[0]
    kept = list(workload.checkpoints.glob("*.damaged-1"))
    assert [k.name for k in kept] == (["step_00000060.damaged-1"] if case == "newest_half" else [])


def test_all_damaged_is_an_error_and_nothing_is_overwritten(workload):
    assert workload(*BP, "--steps", 60, "--save-every", 20)[0] == 0
    damaged(workload, "all_damaged")
    before = {p: p.read_bytes() for p in workload.checkpoints.rglob("*") if p.is_file()}
    code, _, err = workload(*BP, "--steps", 80)
    assert code == errors.CHECKPOINT and "no readable checkpoint" in err[0]
    assert before == {p: p.read_bytes() for p in workload.checkpoints.rglob("*") if p.is_file()}


@pytest.mark.parametrize("program", [BP, CNN])
def test_a_huge_rate_stops_before_anything_of_it_is_saved(workload, program):
    code, _, err = workload(*program, "--steps", 400, "--save-every", 1, "--learning-rate", "1e9")
    assert code == errors.NOT_FINITE and "the loss became NaN or infinite" in err[0]
    for step in checkpoint.steps(workload.checkpoints):
        found, _ = checkpoint.read(workload.checkpoints / checkpoint.folder_name(step))
        assert all(np.isfinite(array).all() for array in found.values())


def test_a_row_of_nan_stops_the_run_and_names_the_last_good_checkpoint(workload):
    images = np.random.default_rng(1).random((600, 12, 10)).astype(np.float32)
    images[301, 4] = np.nan
    labels = np.arange(600, dtype=np.uint8) % 4
    write_set(workload.data, images, labels, images[:50], labels[:50])
    code, _, err = workload(*CNN, "--steps", 400, "--save-every", 1, "--keep-last", 99)
    assert code == errors.NOT_FINITE
    last = checkpoint.steps(workload.checkpoints)
    assert (
        "last good checkpoint is that of " + (f"step {last[-1]}" if last else "no step") in err[0]
    )
    for step in last:
        found, _ = checkpoint.read(workload.checkpoints / checkpoint.folder_name(step))
        assert all(np.isfinite(array).all() for array in found.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_ends_resumable_and_the_old_checkpoint_stands(workload):
    workload.output.mkdir()
    size = ("-o", "size=600k")
    if subprocess.run(["mount", "-t", "tmpfs", *size, "gpubox-test", workload.output]).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        flags = (*BP, "--hidden", 300, "--save-every", 20, "--keep-last", 9)
        code, _, err = workload(*flags, "--steps", 200_000)
        assert code == errors.INTERRUPTED and "No space left on device" in err[0]
        whole, passed = checkpoint.newest(workload.checkpoints)
        assert whole.name == "step_00000020" and passed == []
        assert not list(workload.checkpoints.glob(".part-*"))
        subprocess.run(["mount", "-o", "remount,size=60m", workload.output], check=True)
        code, out, err = workload(*flags, "--steps", 60)
        assert (code, err) == (0, []) and "resumed from step_00000020" in out
    finally:
        subprocess.run(["umount", workload.output], check=True)


def test_a_required_gpu_that_is_not_there_ends_the_run_before_the_first_step(workload):
    code, out, err = workload(*BP, "--steps", 10, REQUIRE_GPU="1")
    assert code == errors.GPU_MISSING and "1 GPU(s) required, TensorFlow sees 0" in err[0]
    assert not checkpoint.steps(workload.checkpoints)
    code, _, err = workload(*BP, "--steps", 10, "--device", "gpu")
    assert code == errors.GPU_MISSING


def test_data_errors_end_the_run_before_tensorflow_starts(workload):
    (workload.data / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(3, np.uint8)))
    code, out, err = workload(*BP, "--steps", 10)
    assert code == errors.DATA and "3 labels" in err[0] and "training on" not in out


def test_evaluate_measures_one_checkpoint(workload):
    assert workload(*CNN, "--steps", 200)[0] == 0
    folder = workload.checkpoints / "step_00000200"
    code, out, _ = workload("evaluate", folder, "--json")
    found = json.loads(out)
    assert code == 0 and found["test_accuracy"] == result(workload)["test_accuracy"]
    assert found["state_sha256"] == result(workload)["state_sha256"]
    os.truncate(folder / "state.npz", 50)
    code, _, err = workload("evaluate", folder, "--json")
    assert code == errors.CHECKPOINT and "state.npz does not match" in err[0]


@pytest.mark.parametrize(
    "flag", [("--precision", "bfloat16"), ("--xla",), ("--precision", "float16")]
)
def test_mixed_precision_and_xla_learn_the_same_thing(workload, flag):
    assert workload(*CNN, "--steps", 200, "--learning-rate", "0.003", *flag)[0] == 0
    assert result(workload)["test_accuracy"] > 0.9


def test_data_that_does_not_stay_resident_gives_the_same_bits(workload, tmp_path):
    assert workload(*CNN, "--steps", 100)[0] == 0
    resident = result(workload)["state_sha256"]
    shutil.rmtree(workload.output)
    assert workload(*CNN, "--steps", 100, "--resident-mib", 0)[0] == 0
    assert result(workload)["state_sha256"] == resident


def test_stderr_is_empty_where_all_is_well_and_last_words_come_through(workload):
    """By a process of its own, which imports TensorFlow itself."""
    folders = {"GPUBOX_INPUT": workload.data, "GPUBOX_OUTPUT": workload.output}
    env = {**os.environ, **{name: str(path) for name, path in folders.items()}}
    command = [sys.executable, "-m", "workload", *map(str, BP), "--steps", "5"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    dying = (
        "import os; from workload import device\n"
        "with device.without_noise():\n"
        "    os.write(2, b'I0000 oneDNN custom operations are on\\nthis CPU lacks AVX\\n')\n"
        "    os.abort()"
    )
    done = subprocess.run([sys.executable, "-c", dying], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT and done.stderr == "this CPU lacks AVX\n"


def test_the_collector_keeps_away_from_what_the_import_made_and_goes_on_after_it():
    script = (
        "import gc; from workload import device\n"
        "device.open_device('cpu', 1, 1, 'auto')\n"
        "import tensorflow as tf\n"
        "kept = gc.get_freeze_count()\n"
        "print(kept > 0, gc.isenabled(), any(each is tf.Variable for each in gc.get_objects()))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr


def test_a_second_trainer_in_the_same_folder_is_refused(workload):
    pid = workload.start("bp", "--steps", 10_000_000, "--save-every", 0)
    wait_until(lambda: (workload.output / "progress.json").exists())
    folders = {"GPUBOX_INPUT": str(workload.data), "GPUBOX_OUTPUT": str(workload.output)}
    command = [sys.executable, "-m", "workload", "bp", "--steps", "10"]
    try:
        other = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **folders}, capture_output=True, text=True
        )
        assert other.returncode == errors.IN_USE
        (said,) = other.stderr.splitlines()
        assert f"process {pid} trains in this folder" in said
    finally:
        os.kill(pid, signal.SIGKILL)
        workload.end()
    assert workload("bp", "--steps", 10)[0] == 0  # a killed one holds nothing
