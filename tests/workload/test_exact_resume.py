"""Killed by SIGKILL at any moment, saves included, a run ends with the bytes of one left alone."""

import json
import os
import random
import signal
import threading
import time

import pytest

from tests.workload.kit import Nursery, Workload, wait_until
from workload import checkpoint

KILLS = 11  # of each program
FLAGS = {
    "cnn": "--conv1 8 --conv2 8 --dense 128 --batch 20 --validation 100",
    "bp": "--hidden 400 --batch 100 --pixel-scale 255",
}
NEVER = 10_000_000  # steps that the killed ones aim at; the last one gets an end within reach
EVERY = "--save-every 40 --log-every 200 --validate-every 1000 --call-seconds 0.05"
THREADS = "--intra-threads 1 --inter-threads 1"


def command(program, steps):
    flags = f"{FLAGS[program]} {EVERY} {THREADS} --steps {steps}"
    return [program, *flags.split()]


def half_saved(run):
    return any(each.name.startswith(".part-") for each in run.checkpoints.iterdir())


def is_training(run):
    return json.loads((run.output / "progress.json").read_text())["phase"] == "training"


def kill_once(run, program, moment, number):
    """Starts, kills; returns (its exit code, whether a half save was left).

    Of three kills one falls into the start, one into a save, one anywhere in the training.
    """
    before = checkpoint.steps(run.checkpoints)
    pid = run.start(*command(program, NEVER))
    run.wait_for("training on")
    if number % 3:
        wait_until(lambda: is_training(run))
    if number % 3 == 1:
        wait_until(lambda: half_saved(run), pause=0.0005)
        time.sleep(moment.uniform(0, 0.004))
    else:
        if number % 3 == 2:  # however slow the disk: each third start gets a step further
            wait_until(lambda: checkpoint.steps(run.checkpoints)[-1:] > before[-1:])
        time.sleep(moment.uniform(0, 1))
    os.kill(pid, signal.SIGKILL)
    return run.end()[0], half_saved(run)


def killed_again_and_again(folder, data, program, found):
    """Runs `program` with KILLS kills and then to its end, then once whole; fills `found`."""
    nursery, moment = Nursery(), random.Random(program)
    killed = Workload(folder / "killed", data, nursery)
    whole = Workload(folder / "whole", data, nursery)
    ends = [kill_once(killed, program, moment, n) for n in range(KILLS)]
    last = checkpoint.steps(killed.checkpoints)[-1] // 200 * 200 + 400
    found[program] = {
        "killed": [code for code, _ in ends].count(-signal.SIGKILL),
        "half saves": sum(half for _, half in ends),
        "ends": [run(*command(program, last)) for run in (killed, whole)],
        "runs": (killed, whole),
    }
    nursery.close()


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(1800)  # half a minute on a quiet machine; a loaded disk syncs slowly
def test_twenty_kills_change_no_bit(tmp_path, small_set):
    found = {}
    threads = [
        threading.Thread(
            target=killed_again_and_again, args=(tmp_path / name, small_set, name, found)
        )
        for name in FLAGS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == set(FLAGS)
    assert sum(each["killed"] for each in found.values()) >= 20
    assert sum(each["half saves"] for each in found.values()) >= 1
    for program, each in found.items():
        assert [(code, said) for code, _, said in each["ends"]] == [(0, []), (0, [])]
        assert "resumed from step_" in each["ends"][0][1]
        compare(*each["runs"], program)


def compare(killed, whole, program):
    """Weights, slots, measured curves and the files themselves are the same."""
    results = [json.loads((run.output / "result.json").read_text()) for run in (killed, whole)]
    for key in ("state_sha256", "weights_sha256", "test_accuracy", "loss", "best", "confusion"):
        assert results[0][key] == results[1][key], (program, key)
    rows = [(run.output / "metrics.jsonl").read_text().splitlines() for run in (killed, whole)]
    curves = [
        [{k: v for k, v in json.loads(row).items() if k in MEASURED} for row in part]
        for part in rows
    ]
    assert curves[0] == curves[1]
    folder = sorted(whole.checkpoints.glob("step_*"))[-1].name
    for file in ("state.npz", "meta.json", "SHA256SUMS"):
        one, two = (run.checkpoints / folder / file for run in (killed, whole))
        assert one.read_bytes() == two.read_bytes()
    assert not list(killed.checkpoints.glob(".part-*"))


MEASURED = ("step", "loss", "accuracy", "validation_accuracy")
