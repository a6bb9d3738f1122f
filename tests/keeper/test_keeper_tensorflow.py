"""For real: TensorFlow in a container on a machine with init, through a power-off, to the same bits."""

import json
import os
import signal
import subprocess
import time

import pytest

from bench import mnist
from tests.box.box import docker
from tests.chain.kit import FAB, ROOT, fab

pytestmark = [pytest.mark.engine, pytest.mark.box, pytest.mark.tensorflow, pytest.mark.slow]
pytestmark += [pytest.mark.timeout(2400)]  # on a busy machine
# Saved at the stop only, so that what is resumed is what the stop has saved.
FLAGS = ["--steps", "30000", "--save-every", "0", "--hidden", "100", "--no-report"]


def until(what, seconds):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.2)
    return found


def run_of(box):
    """The run's files as they are on the box: (id, state, step)."""
    (run,) = box.run("ls", "/data/runs").stdout.split()
    state = json.loads(box.run("cat", f"/data/runs/{run}/state.json").stdout)
    done = box.run("cat", f"/data/runs/{run}/output/progress.json", check=False)
    return run, state, json.loads(done.stdout)["step"] if done.returncode == 0 else 0


def hours_from_now(box, seconds):
    up = float(box.run("cut", "-d", " ", "-f", "1", "/proc/uptime").stdout)
    began = int(box.run("cut", "-d", " ", "-f", "22", "/proc/1/stat").stdout) / 100
    return str((up - began + seconds) / 3600)


def alone(folder):
    """The result of the same training in the same image, left alone."""
    mounts = ["-v", f"{mnist.folder()}:/input:ro", "-v", f"{folder}:/output"]
    program = ["python", "-m", "workload", "bp", *FLAGS]
    docker("run", "--rm", "--user", "0:0", *mounts, "gpubox/cpu:latest", *program)
    return json.loads((folder / "result.json").read_text())


def test_deployed_by_a_laptop_that_dies_stopped_resumed_and_switched_off(
    boxes, cpu_image, tmp_path
):
    boxes.more = f"""
[data.mnist]
path = {json.dumps(str(mnist.folder()))}
[run]
data = "mnist"
command = ["python", "-m", "workload", "bp"]
"""
    idle = 'idle = {poll = "1s", cpu_below = 1e9, net_below = 1e9, disk_below = 1e9}'
    box = boxes.start("engine", toml=f'device = "cpu"\nprovider = "vm"\n{idle}')
    box.load(cpu_image)
    words = [str(FAB), "deploy", "--host", box.name, "--args", " ".join(FLAGS)]
    laptop = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    until(lambda: box.run("docker", "ps", "-q").stdout.strip(), 300)
    time.sleep(1)
    os.killpg(laptop.pid, signal.SIGKILL)
    assert laptop.wait() == -signal.SIGKILL, "killed before it was done"
    (keeper,) = fab("idle", "--host", box.name, "--json")
    assert keeper["armed"] and keeper["rule"]["stop"]["how"] == "inside"

    until(lambda: run_of(box)[2] > 0, 120)
    fab(
        "idle", "--host", box.name, "--max-hours", hours_from_now(box, 2)
    )  # well before its last step
    assert box.wait_off(180) == 130
    box.power_on()
    fab("idle", "--host", box.name, "--max-hours", "off")
    run, state, _ = run_of(box)
    steps = box.run("ls", f"/data/runs/{run}/output/checkpoints").stdout
    assert "step_" in steps, "saved at the stop"
    until(lambda: run_of(box)[1]["state"] == "finished", 600)
    ways = [each["state"] for each in run_of(box)[1]["history"]]
    assert ways.count("running") == 2 and "interrupted" in ways and "failed" not in ways
    result = json.loads(box.run("cat", f"/data/runs/{run}/output/result.json").stdout)
    assert result["state_sha256"] == alone(tmp_path)["state_sha256"]

    fab("idle", "--host", box.name, "--stop-after", "6s", "--remind-after", "2s")
    assert box.wait_off(120) == 130, "nothing to do any more"
