"""Killed by SIGKILL at any moment, saves included, a run ends with the bytes of one left alone."""

import json
import random
import signal
import threading
import time

import pytest

from tests.workload.kit import Workload

KILLS = 12  # of each program; every other one is aimed into a save
FLAGS = {
    "cnn": "--conv1 8 --conv2 8 --dense 128 --batch 20 --validation 100 --steps 4000",
    "bp": "--hidden 400 --batch 100 --pixel-scale 255 --steps 12000",
}
EVERY = "--save-every 40 --log-every 200 --validate-every 1000 --call-seconds 0.05"
THREADS = "--intra-threads 1 --inter-threads 1"


def command(program):
    return [program, *FLAGS[program].split(), *EVERY.split(), *THREADS.split()]


def wait_for_training(process):
    for text in process.stdout:
        if text.startswith("training on"):
            return


def wait_for_save(process, checkpoints, deadline):
    while process.poll() is None and time.monotonic() < deadline:
        if any(each.name.startswith(".part-step") for each in checkpoints.iterdir()):
            return
        time.sleep(0.0005)


def kill_once(run, program, moment, aimed):
    """Starts, kills; returns (whether it was still running, whether a half save was left)."""
    process = run.start(*command(program))
    wait_for_training(process)
    if aimed:
        wait_for_save(process, run.checkpoints, time.monotonic() + 60)
        time.sleep(moment.uniform(0, 0.004))
    else:
        time.sleep(moment.uniform(0.2, 2.0))
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return alive, any(each.name.startswith(".part-") for each in run.checkpoints.iterdir())


def killed_again_and_again(folder, data, program, found):
    """Runs `program` with KILLS kills and then to its end; fills `found`."""
    run, moment = Workload(folder, data), random.Random(program)
    ends = [kill_once(run, program, moment, aimed=bool(n % 2)) for n in range(KILLS)]
    code, _, err = run(*command(program))
    found[program] = {
        "killed": sum(alive for alive, _ in ends),
        "half saves": sum(half for _, half in ends),
        "code": code,
        "said": err,
        "run": run,
    }


@pytest.mark.tensorflow
@pytest.mark.slow
def test_twenty_four_kills_change_no_bit(tmp_path, small_set):
    found, whole = {}, {}
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
    for program in FLAGS:
        whole[program] = Workload(tmp_path / f"{program}-whole", small_set)
        assert whole[program](*command(program))[0] == 0
    assert sum(each["killed"] for each in found.values()) >= 20
    assert sum(each["half saves"] for each in found.values()) >= 1
    for program, each in found.items():
        assert (each["code"], each["said"]) == (0, [])
        compare(each["run"], whole[program], program)


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
