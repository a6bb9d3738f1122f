"""Runs on real boxes outlive links, engines, supervisors and power cuts, to the same bits."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FAB = Path(sys.executable).parent / "fab"
STEPS = "12000"  # long enough that a quick machine does not finish before the plug is pulled
CONFIG = f"""
[data.mnist]
path = "~/.gpubox/sets/mnist"
[run]
data = "mnist"
command = ["python", "-m", "workload", "bp", "--steps", "{STEPS}", "--save-every", "100"]
[idle]
stop_after = "2h"
poll = "1s"
"""
pytestmark = [
    pytest.mark.box,
    pytest.mark.engine,
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]


def fab(*words):
    done = subprocess.run(
        [str(FAB), *words], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["results"] if "--json" in words else done.stdout + done.stderr


def eventually(answer, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not (value := answer()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(1)  # each look is a program started in the box
    return value


def read(box, run, name):
    """A JSON file of a run's folder on the box; None while it is not there."""
    done = box.run("cat", f"/data/runs/{run}/{name}", check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def newest_step(box, run):
    names = box.run("ls", f"/data/runs/{run}/output/checkpoints", check=False).stdout
    return max((int(step) for step in re.findall(r"^step_(\d{8})$", names, re.M)), default=-1)


def past(box, run, step):
    """Wait until a checkpoint after `step` stands there, and tell which."""
    eventually(lambda: newest_step(box, run) > step)
    return newest_step(box, run)


def finished(box, run):
    """Its result, after all that happened to it."""
    eventually(lambda: (read(box, run, "state.json") or {})["state"] in ("finished", "failed"))
    state = read(box, run, "state.json")
    assert state["state"] == "finished", state
    return read(box, run, "output/result.json"), [each["state"] for each in state["history"]]


def test_in_a_container_over_link_engine_supervisor_and_power(boxes, cpu_image, tmp_path):
    boxes.more = CONFIG
    box = boxes.start("engine", toml="device = 'cpu'")
    box.load(cpu_image)
    fab("get", "mnist")
    (alone,) = fab("deploy", "--host", box.name, "--json")
    left_alone, _ = finished(box, alone["id"])

    (first,) = fab("deploy", "--host", box.name, "--new", "--json")
    run = first["id"]
    following = subprocess.Popen(
        [str(FAB), "logs", "--host", box.name, "--run", run, "--follow"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=(tmp_path / "followed").open("wb"),
        stderr=subprocess.STDOUT,
    )
    eventually(lambda: box.run("pgrep", "-f", "onbox.* logs", check=False).stdout)
    box.run(
        "sh", "-c", "pkill -KILL -f 'onbox.* [l]ogs'; pkill -KILL -f 'sshd.*@[n]otty'", check=False
    )
    step = past(box, run, 0)

    box.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "docker")
    step = past(box, run, step)
    box.run("pkill", "-KILL", "-f", "onbox[.]supervise")
    step = past(box, run, step)
    box.power_off()
    box.power_on()
    past(box, run, newest_step(box, run))  # the power-off saved one itself: it must have gone on
    box.pull_the_plug()
    box.power_on()

    result, history = finished(box, run)
    assert history.count("interrupted") >= 2, history  # by the power-off and by the plug at least
    assert result["weights_sha256"] == left_alone["weights_sha256"]
    assert result["state_sha256"] == left_alone["state_sha256"]
    try:
        assert following.wait(120) == 0  # it went on over lost links and two boots, to the end
    finally:
        following.kill()
    followed = (tmp_path / "followed").read_text()
    assert "the run goes on, next try in" in followed
    assert f"{run}: finished" in followed


def test_as_a_process_on_a_box_with_neither_engine_nor_init(boxes, tmp_path):
    python = ROOT / ".venv-train"
    if not (python / "bin" / "python").exists():
        pytest.skip("no .venv-train: make test makes it")
    # The environment is bound in with all that it links to, under the same paths.
    real, home = python.resolve(), Path(os.path.realpath(python / "bin" / "python")).parents[1]
    mounts = [word for each in (real, home) for word in ("--volume", f"{each}:{each}:ro")]
    boxes.more = CONFIG
    box = boxes.start("process", toml=f"python = '{real}/bin/python'", more=mounts)
    fab("get", "mnist")
    (alone,) = fab("deploy", "--host", box.name, "--json")
    left_alone, _ = finished(box, alone["id"])
    (first,) = fab("deploy", "--host", box.name, "--new", "--json")
    run = first["id"]
    assert read(box, run, "run.json")["runner"] == "process"
    step = past(box, run, 0)
    box.run("pkill", "-KILL", "-f", "onbox[.]supervise")
    step = past(box, run, step)
    box.pull_the_plug()
    box.power_on()
    fab("status", "--host", box.name)
    # Nothing starts programs there after a boot: `NOT armed` until one deploys again.
    (again,) = fab("deploy", "--host", box.name, "--json")
    assert again["id"] == run
    result, history = finished(box, run)
    assert "interrupted" in history
    assert result["state_sha256"] == left_alone["state_sha256"]


def test_a_clean_power_off_saves_and_the_run_goes_on_by_itself(boxes, cpu_image):
    """A clean power-off is a stop with a checkpoint: `interrupted`, exit 75, no work lost."""
    boxes.more = CONFIG.replace(f'"{STEPS}"', '"200000"')
    box = boxes.start("engine", toml="device = 'cpu'")
    box.load(cpu_image)
    fab("get", "mnist")
    (first,) = fab("deploy", "--host", box.name, "--json")
    run = first["id"]
    past(box, run, 0)
    box.power_off()
    box.power_on()
    eventually(lambda: read(box, run, "state.json")["state"] == "running")
    history = read(box, run, "state.json")["history"]
    assert [each["state"] for each in history][3:5] == ["stopping", "interrupted"], history
    fab("stop", "--host", box.name, "--run", run)
