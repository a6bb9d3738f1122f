"""The whole chain on real parts: a real box over real SSH, real TensorFlow, real MNIST."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chain.kit import FAB, ROOT, check_sums, fab

CONFIG = """
[data.mnist]
path = "~/.gpubox/sets/mnist"
[run]
data = "mnist"
command = ["python", "-m", "workload", "bp"]
"""


def eventually(answer, seconds=120.0):
    """The first true answer within the time."""
    deadline = time.monotonic() + seconds
    while not (value := answer()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.5)
    return value


def step_of(box, run):
    (found,) = fab("status", "--host", box, "--run", run, "--json")[0]["runs"]
    return found["progress"]["step"], found["state"]["state"]


@pytest.mark.box
@pytest.mark.engine
@pytest.mark.tensorflow
@pytest.mark.slow
def test_deploy_to_a_box_lose_the_link_fetch_stop_and_deploy_again(boxes, cpu_image, tmp_path):
    boxes.more = CONFIG
    box = boxes.start("engine", toml="device = 'cpu'")
    fab("get", "mnist")
    arguments = ["--args", "--steps 200000 --save-every 200"]

    (first,) = fab("deploy", "--host", box.name, *arguments, "--json")
    assert (first["action"], first["outcome"]) == ("new", "first-step")
    run = first["id"]
    log = box.run("cat", "/root/.gpubox/staging.log", check=False)
    assert (log.returncode, log.stdout) == (0, ""), "it was staged while the image was made"
    (keeper,) = fab("idle", "--host", box.name, "--json")
    assert keeper["line"].startswith(
        "auto-stop: reminders only"
    )  # armed; nobody knows this provider
    link = box.run("readlink", "/input/mnist").stdout.strip()
    assert link.endswith(f"mnist@{first['version']}"), (
        "staged to the fast disk, not trained from /data"
    )

    watching = subprocess.Popen(
        [str(FAB), "logs", "--host", box.name, "--run", run, "--follow"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    eventually(lambda: box.run("pgrep", "-f", "onbox.* logs", check=False).stdout)
    box.run("pkill", "-KILL", "-f", "sshd.*(root|dev)@", check=False)  # every session's server side
    os.kill(watching.pid, signal.SIGKILL)
    watching.wait()
    before, _ = step_of(box.name, run)
    eventually(lambda: step_of(box.name, run)[0] > before + 200)

    (home,) = fab(
        "fetch", "--host", box.name, "--run", run, "--to", str(tmp_path / "home"), "--json"
    )
    checkpoints = Path(home["folder"]) / "output" / "checkpoints"
    newest = checkpoints / (checkpoints / "LATEST").read_text().strip()
    check_sums(newest)

    fab("stop", "--host", box.name, "--run", run)
    _, state = step_of(box.name, run)
    assert state == "stopped"
    stopped_at = newest_step(box, run)

    (again,) = fab("deploy", "--host", box.name, *arguments, "--json")
    assert (again["action"], again["id"], again["outcome"]) == ("resume", run, "first-step")
    log = fab("logs", "--host", box.name, "--run", run)
    assert f"resumed from step_{stopped_at:08d}" in log
    assert step_of(box.name, run)[0] >= stopped_at
    fab("stop", "--host", box.name, "--run", run)


def newest_step(box, run):
    names = box.run("ls", f"/data/runs/{run}/output/checkpoints").stdout
    return max(int(step) for step in re.findall(r"^step_(\d{8})$", names, re.M))


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_demo_needs_neither_docker_nor_ssh(tmp_path, own_home):
    """`make demo`'s path where no engine and no ssh is on PATH: plain processes, a venv of its own."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "env", "git", "npm", "node", "cat", "mkdir", "uname", "wc", "mv", "rm"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    (tools / "python3").symlink_to(sys.executable)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    done = subprocess.run(
        [str(FAB), "demo"],
        cwd=clone,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": str(tools)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "runner process, device cpu" in done.stderr
    accuracies = [float(each) for each in re.findall(r"finished\s+(\d+\.\d\d)%", done.stdout)]
    assert len(accuracies) == 2 and min(accuracies) > 85
    fetched = list((clone / "home").glob("*/output/checkpoints/step_*"))
    assert {each.name for each in fetched} == {"step_00003000", "step_00000300"}
    for each in fetched:
        check_sums(each)
