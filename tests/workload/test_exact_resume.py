"""Killed by SIGKILL at any moment, saves included, a run ends with the bytes of one left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.workload.kit import ROOT, Workload
from workload import checkpoint

KILLS = 11  # of each program; every other one is aimed into a save
FLAGS = {
    "cnn": "--conv1 8 --conv2 8 --dense 128 --batch 20 --validation 100",
    "bp": "--hidden 400 --batch 100 --pixel-scale 255",
}
NEVER = 10_000_000  # steps that the killed ones aim at; the last one gets an end within reach
EVERY = "--save-every 40 --log-every 200 --validate-every 1000 --call-seconds 0.05"
THREADS = "--intra-threads 1 --inter-threads 1"


def command(program):
    return [program, *FLAGS[program].split(), *EVERY.split(), *THREADS.split()]


class Nursery:
    """Starts runs of one program by the nursery beside this file, and kills them."""

    def __init__(self, run, program):
        self.run, self.program = run, program
        self.log = run.scratch.parent / "log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.workload.nursery"],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline() == "ready\n"

    def start(self, steps):
        """Starts a run with an empty log; returns its process id."""
        self.log.write_text("")
        order = {
            "arguments": [*command(self.program), "--steps", str(steps)],
            "environment": self.run.environment,
            "output": str(self.log),
        }
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        """Waits for the run; returns its exit code, negative for a signal."""
        return int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def wait_until(condition, seconds=60, pause=0.01):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(pause)


def half_saved(run):
    return any(each.name.startswith(".part-") for each in run.checkpoints.iterdir())


def kill_once(nursery, moment, aimed):
    """Starts, kills; returns (whether it was still running, whether a half save was left)."""
    pid = nursery.start(NEVER)
    wait_until(lambda: "training on" in nursery.log.read_text())
    if aimed:
        wait_until(lambda: half_saved(nursery.run), pause=0.0005)
        time.sleep(moment.uniform(0, 0.004))
    else:
        time.sleep(moment.uniform(0.1, 1.5))
    os.kill(pid, signal.SIGKILL)
    return nursery.end() == -signal.SIGKILL, half_saved(nursery.run)


def killed_again_and_again(folder, data, program, found):
    """Runs `program` with KILLS kills and then to its end, then once whole; fills `found`."""
    run, moment = Workload(folder / "killed", data), random.Random(program)
    nursery = Nursery(run, program)
    ends = [kill_once(nursery, moment, aimed=bool(n % 2)) for n in range(KILLS)]
    last = checkpoint.steps(run.checkpoints)[-1] // 200 * 200 + 400
    nursery.start(last)
    code = nursery.end()
    log = nursery.log.read_text()
    nursery.run = whole = Workload(folder / "whole", data)
    nursery.start(last)
    found[program] = {
        "killed": sum(alive for alive, _ in ends),
        "half saves": sum(half for _, half in ends),
        "codes": (code, nursery.end()),
        "log": log,
        "runs": (run, whole),
    }
    nursery.close()


@pytest.mark.tensorflow
@pytest.mark.slow
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
        assert each["codes"] == (0, 0), each["log"]
        assert "resumed from step_" in each["log"] and "warning:" not in each["log"]
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
