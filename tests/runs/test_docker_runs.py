"""Runs in containers of a real engine: labels, limits, names, memory, and a lost supervisor."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bench import mnist
from deploy.effects.settings import root
from deploy.onbox.output import tail
from deploy.onbox.runs import record, supervisor_pid
from deploy.onbox.tending import tend

pytestmark = [pytest.mark.engine, pytest.mark.slow]
LOOP = """
try:
    for step in range(newest() + 1, 100000):
        progress(step, 100000)
        if step % 10 == 0:
            publish(step)
        time.sleep(0.02)
except Ending:
    publish(step)
    sys.exit(75)
"""


def docker(*words):
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout


def container_of(run):
    return docker("ps", "-aq", "--filter", f"label=gpubox.run={run}").strip()


@pytest.fixture
def launch(box, cpu_image):
    """Launch a program in a container; its id is one that no earlier test used."""
    made = []

    def start(program, **more):
        compose = (root() / "compose.yaml").read_text()
        run = f"20261130-0930-runs-test-{os.urandom(2).hex()}"
        made.append(run)
        request = {"runner": "docker", "image": cpu_image, "compose": compose, "id": run, **more}
        return box.launch(program, **request)

    yield start
    box.end()
    for run in made:
        for container in container_of(run).split():
            docker("rm", "-f", container)


def test_a_run_in_a_container_is_confined_and_told_by_its_label(box, launch):
    report = launch(LOOP, env="TOKEN=s3cr$t-value\n")
    assert report["outcome"] == "first-step"
    container = container_of(report["id"])
    found = json.loads(docker("inspect", container))[0]
    host = found["HostConfig"]
    assert not host["Privileged"] and host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["LogConfig"]["Config"] == {"max-size": "16m", "max-file": "4"}
    assert host["RestartPolicy"]["Name"] == "no" and host["ShmSize"] == 64 << 20
    assert found["Config"]["User"] == f"{os.getuid()}:{os.getgid()}"
    assert (
        found["Image"].startswith("sha256:")
        and record(box.places, report["id"])["run"]["image"] == found["Image"]
    )
    assert not [m for m in found["Mounts"] if "docker.sock" in m["Source"]]
    mounts = {m["Destination"]: (m["Source"], m["RW"]) for m in found["Mounts"]}
    assert mounts["/output"] == (report["folder"] + "/output", True)
    assert mounts["/cache"] == (box.folders["data"] + "/.gpubox-cache", True)
    assert mounts["/input"][1] is False and mounts["/code"][1] is False
    assert "s3cr$t-value" not in json.dumps(found)
    answer = box.agent.call("stop", run=report["id"])
    assert answer["state"]["state"] == "stopped" and answer["state"]["exit_code"] == 75
    box.until(report["id"], "stopped")
    assert container_of(report["id"]) == ""  # nothing is left on the engine
    networks = docker("network", "ls", "--format", "{{.Name}}").split()
    assert not [name for name in networks if report["id"] in name]


def test_output_and_variables(box, launch):
    program = "print(os.environ['TOKEN'], flush=True); progress(1, 1)"
    report = launch(program, env="# of mine\nTOKEN=a $b 'c' \"d\" \\e\nEMPTY=\n")
    state = box.until(report["id"], "finished")
    assert tail(report["folder"] + "/logs")[-1] == "a $b 'c' \"d\" \\e"
    assert state["exit_code"] == 0


@pytest.mark.parametrize(
    "program,kind",
    [
        ("x = bytearray(400 << 20)", "out-of-memory"),
        (
            "import subprocess\n"
            "subprocess.run([sys.executable, '-c', 'x = bytearray(400 << 20)'])\n"
            "print('the parent ends well')",
            "out-of-memory",
        ),
        ("sys.exit(3)", "exit-code"),
    ],
    ids=["the program", "its child", "neither"],
)
def test_out_of_memory_is_told_apart_also_in_a_child(box, launch, program, kind):
    report = launch(program, memory="128m")
    state = box.until(report["id"], "failed")
    assert state["ending"]["kind"] == kind, state["ending"]


@pytest.mark.tensorflow
def test_the_real_trainer_that_hits_its_memory_limit_is_told(box, launch):
    shelf = Path(box.places.data, "mnist")
    shelf.mkdir(parents=True)
    for source in mnist.folder().iterdir():
        shutil.copy(source, shelf)
    data = {"name": "mnist", "version": "current"}
    command = ["python", "-m", "workload", "bp", "--steps", "100"]
    report = launch("", command=command, data=data, memory="100m")
    assert box.until(report["id"], "failed")["ending"]["kind"] == "out-of-memory"


def test_a_lost_supervisor_finds_its_container_again(box, launch):
    report = launch(LOOP.replace("time.sleep", "print('step', step, flush=True); time.sleep"))
    run = report["id"]
    container = container_of(run)
    os.kill(supervisor_pid(box.places, run), signal.SIGKILL)
    box.wait(lambda: not supervisor_pid(box.places, run))
    time.sleep(1)
    tend(box.places)
    box.wait(lambda: supervisor_pid(box.places, run))
    assert container_of(run) == container
    answer = box.agent.call("stop", run=run)
    assert answer["state"]["state"] == "stopped"
    box.until(run, "stopped")
    lines = [line for line in tail(report["folder"] + "/logs", 10**6) if line.startswith("step ")]
    assert lines == [f"step {n}" for n in range(1, len(lines) + 1)]  # none lost, none twice


def test_a_dead_container_of_our_name_is_cleaned_up_and_its_output_kept(box, launch, cpu_image):
    run = f"20261130-0930-runs-test-{os.urandom(2).hex()}"
    name = f"gpubox-{run}-cpu-train-1"
    words = ["--entrypoint", "echo", "--name", name, cpu_image, "from an earlier life"]
    docker("run", *words)
    longer = docker(
        "run", "-d", "--entrypoint", "sleep", "--name", name + "0", cpu_image, "300"
    ).strip()
    try:
        report = launch("progress(1, 1)", id=run)
        box.until(run, "finished")
        assert "from an earlier life" in "\n".join(tail(report["folder"] + "/logs"))
        assert docker("inspect", "-f", "{{.State.Running}}", longer).strip() == "true"
    finally:
        docker("rm", "-f", longer)


def test_a_living_container_of_our_name_is_not_touched(box, launch, cpu_image):
    run = f"20261130-0930-runs-test-{os.urandom(2).hex()}"
    name = f"gpubox-{run}-cpu-train-1"
    theirs = docker("run", "-d", "--entrypoint", "sleep", "--name", name, cpu_image, "300").strip()
    try:
        report = launch("progress(1, 1)", id=run)
        assert report["state"]["state"] == "failed"
        assert (
            "a container that is not ours runs under the name" in report["state"]["ending"]["text"]
        )
        assert docker("inspect", "-f", "{{.State.Running}}", theirs).strip() == "true"
    finally:
        docker("rm", "-f", theirs)


def test_an_image_that_is_not_there_is_said_before_anything_is_made(box, launch):
    from deploy.errors import ImageError

    with pytest.raises(ImageError, match="no image gpubox/none"):
        launch("progress(1, 1)", image="gpubox/none:latest")


def test_a_gpu_that_is_not_there_is_never_replaced_by_the_cpu(box, launch):
    from deploy.errors import GpuError

    with pytest.raises(GpuError, match="nvidia-smi lists none"):
        launch("progress(1, 1)", device="gpu")
