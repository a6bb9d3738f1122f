"""The real workload under its supervisor, ended at awkward moments; and the venv that is made for it."""

import os
import signal
import time
from pathlib import Path

import pytest

from bench import mnist
from deploy.effects.settings import root
from deploy.onbox.checkpoints import verify
from deploy.onbox.runs import read_progress, record
from deploy.onbox.steps import checkpoint_steps
from tests.runs.test_training import python, result_of, train  # noqa: F401

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
BP = ["python", "-m", "workload", "bp", "--steps", "1200", "--save-every", "50"]


@pytest.fixture
def long_test(box, train):  # noqa: F811
    """MNIST with its training images as test images too, so that the evaluation takes a second."""
    shelf = Path(box.places.data, "mnist")
    for kind in ("images", "labels"):
        (old,) = shelf.glob(f"t10k-{kind}*")
        (new,) = shelf.glob(f"train-{kind}*")
        old.unlink()
        os.link(new, old)
    return train


def phase_of(folder):
    return (read_progress(folder) or {}).get("phase")


def half_saved(folder):
    try:
        return any(n.startswith(".part-") for n in os.listdir(folder + "/output/checkpoints"))
    except FileNotFoundError:
        return False


def saves(folder):
    return len(checkpoint_steps(folder)) > 1


MOMENTS = {
    "step": lambda folder: saves(folder) and phase_of(folder) == "training",
    "save": lambda folder: saves(folder) and half_saved(folder),
    "evaluation": lambda folder: phase_of(folder) == "evaluating",
}


def at(moment, folder, seconds=120):
    """Returns as soon as the run is there; no pause in between, for a save is over in no time."""
    deadline = time.monotonic() + seconds
    while not moment(folder):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.0005)


def pid_of(box, run):
    return record(box.places, run)["state"]["handle"]["pid"]


def newest_is_whole(folder):
    verify(f"{folder}/output/checkpoints/step_{checkpoint_steps(folder)[-1]:08d}")


def test_sigterm_at_any_moment_saves_and_changes_no_bit(box, long_test):
    alone = long_test(BP)
    box.until(alone["id"], "finished", seconds=240)
    report = long_test(BP)
    run, folder = report["id"], report["folder"]
    for name, moment in MOMENTS.items():
        at(moment, folder)
        os.kill(pid_of(box, run), signal.SIGTERM)
        state = box.until(run, "interrupted", seconds=120)
        assert (state["exit_code"], state["ending"]["kind"]) == (75, "interrupted"), name
        newest_is_whole(folder)
        box.agent.call("resume", run=run, wait=True)
    box.until(run, "finished", seconds=240)
    assert result_of(box, run)["state_sha256"] == result_of(box, alone["id"])["state_sha256"]


def test_a_second_sigterm_in_the_save_ends_it_at_once_and_tears_nothing(box, train):  # noqa: F811
    report = train(BP)
    run, folder = report["id"], report["folder"]
    at(MOMENTS["step"], folder)
    os.kill(pid_of(box, run), signal.SIGTERM)
    at(lambda _: phase_of(folder) == "saving", folder)
    os.kill(pid_of(box, run), signal.SIGTERM)
    state = box.until(run, "failed", "interrupted", seconds=120)
    assert state["exit_code"] in (-signal.SIGTERM, 75), state  # 75: the save was over before
    newest_is_whole(folder)
    box.agent.call("resume", run=run, wait=True)
    box.until(run, "finished", seconds=240)


def test_a_loss_that_is_no_number_ends_the_run_with_the_last_good_checkpoint_named(box, train):  # noqa: F811
    report = train([*BP, "--learning-rate", "1e30"])
    state = box.until(report["id"], "failed", seconds=120)
    assert (state["ending"]["kind"], state["exit_code"]) == ("nan", 70)
    assert "the last good checkpoint is" in state["ending"]["text"]


def test_where_no_python_has_tensorflow_a_venv_is_made_once_and_trained_in(box, train):  # noqa: F811
    lock = (root() / "images" / "requirements-cpu.lock").read_text()
    assert mnist.folder().is_dir()
    short = ["python", "-m", "workload", "bp", "--steps", "40"]
    first = train(short, python="", requirements=lock)
    box.until(first["id"], "finished", seconds=240)
    (venv,) = Path(box.places.data).glob(".gpubox-venv-*[0-9a-f]")
    assert (venv / ".ready").exists()
    log = (Path(first["folder"]) / "logs").glob("output-*")
    assert any("finished: " in each.read_text() for each in log)
    written = (venv / ".ready").stat().st_mtime_ns
    again = train(short, python="", requirements=lock)
    box.until(again["id"], "finished", seconds=120)
    assert (venv / ".ready").stat().st_mtime_ns == written
    assert again["state"]["phases"]["prepare"] < first["state"]["phases"]["prepare"] / 5
