"""Two boxes train one model with real TensorFlow: checked first, killed in mid-run, back together."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import mnist
from tests.box.fixtures import boxes, cpu_image, engine  # noqa: F401

pytestmark = [pytest.mark.engine, pytest.mark.box, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
FAB = Path(sys.executable).parent / "fab"
PROGRAM = ROOT / "examples" / "several-workers"
STEPS, BATCH = 400, 120
# Only the order in which floats are added differs. That is 1e-7 of the loss, until a unit of the
# net falls on the other side of zero: from then on the curves part slowly.
FIRST, OF_FIRST, OF_ALL = 50, 1e-5, 0.02
PYTHON = "/opt/venv/bin/python"


def docker(*words):
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def tensorflow(cpu_image):  # noqa: F811
    """Words for `docker run` that give a box the Python of our image, with its TensorFlow."""
    volume = f"gpubox-test-tensorflow-{os.getpid()}"
    docker("run", "--rm", "--volume", f"{volume}:/opt/venv", "--entrypoint", "true", cpu_image)
    yield ["--volume", f"{volume}:/opt/venv:ro"]
    docker("volume", "rm", volume)


@pytest.fixture
def network(engine):  # noqa: F811
    """A network of the test's own: on Docker's common one another test's box would take the address
    of a box that is off."""
    name = f"gpubox-test-workers-{os.getpid()}"
    docker("network", "create", name)
    yield name
    docker("network", "rm", name)


def start_two(boxes, more, networks=("bridge", "bridge")):  # noqa: F811
    """Boxes one and two, as rented pods are; the run of gpubox.toml is the example's."""
    own = f'runner = "process"\npython = "{PYTHON}"\nshared = true\n'
    run = (
        f'[data.mnist]\npath = "{mnist.folder()}"\n[run]\ndata = "mnist"\ncode = "{PROGRAM}"\n'
        f'command = ["python", "train.py", "--steps", "{STEPS}", "--batch", "{BATCH}"]\n'
    )
    return [
        boxes.start("process", name, toml=text, more=[*more, "--network", network])
        for name, text, network in zip(("one", "two"), (own, own + run), networks, strict=True)
    ]


def fab(*words, code=0):
    done = subprocess.run([FAB, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def state_of(box, run):
    found = json.loads(box.run("cat", f"/data/runs/{run}/state.json").stdout)
    return found["state"]


def step_of(box, run):
    done = box.run("cat", f"/data/runs/{run}/output/progress.json", check=False)
    return json.loads(done.stdout)["step"] if done.returncode == 0 else 0


def until(what, seconds, say):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, say()
        time.sleep(0.5)


def logs_of(box):
    return box.run("sh", "-c", "tail -n 30 /data/runs/*/logs/*; cat /data/runs/*/state.json").stdout


def curve(text):
    """step → loss of a metrics.jsonl; a step that was done twice counts as it was done last."""
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["step"]: row["loss"] for row in rows}


def alone(folder):
    """The same program, batch and steps on one worker, with the same TensorFlow."""
    mounts = [
        "-v",
        f"{mnist.folder()}:/input:ro",
        "-v",
        f"{folder}:/output",
        "-v",
        f"{PROGRAM}:/code:ro",
    ]
    program = ["python", "/code/train.py", "--steps", str(STEPS), "--batch", str(BATCH)]
    docker("run", "--rm", "--user", "0:0", *mounts, "gpubox/cpu:latest", *program)
    return (folder / "metrics.jsonl").read_text(), json.loads((folder / "result.json").read_text())


@pytest.mark.tensorflow
def test_one_is_killed_and_both_go_on_to_the_same_curve(boxes, tensorflow, tmp_path):  # noqa: F811
    one, two_ = start_two(boxes, tensorflow)
    words = ["--args", "--save-every 50 --pause 0.05", "--json"]
    done = fab("deploy", "--workers", "one,two", *words)
    chief, other = (each["id"] for each in json.loads(done.stdout)["results"])
    assert other == chief[:-5] + "-w1" + chief[-5:]
    until(lambda: step_of(one, chief) >= 120, 300, lambda: logs_of(one) + logs_of(two_))
    two_.run("pkill", "-KILL", "-f", "train.py")
    states = lambda: [state_of(one, chief), state_of(two_, other)]  # noqa: E731
    until(lambda: states() == ["finished"] * 2, 600, lambda: logs_of(one) + logs_of(two_))

    ways = [
        json.loads(box.run("cat", f"/data/runs/{run}/state.json").stdout)["history"]
        for box, run in ((one, chief), (two_, other))
    ]
    assert all("interrupted" in [each["state"] for each in way] for way in ways)
    log = one.run("sh", "-c", f"cat /data/runs/{chief}/logs/*").stdout
    began = [int(step) for step in re.findall("worker 0 of 2: from step ([0-9]+)", log)]
    assert began[0] == 0 and began[-1] in range(100, STEPS, 50), began  # how late the kill came

    output = f"/data/runs/{chief}/output"
    text, result = alone(tmp_path)
    expected, found = curve(text), curve(one.run("cat", f"{output}/metrics.jsonl").stdout)
    assert found.keys() == expected.keys()
    apart = {s: abs(found[s] - expected[s]) / expected[s] for s in found}
    assert max(apart[s] for s in apart if s <= FIRST) <= OF_FIRST
    assert max(apart.values()) <= OF_ALL
    accuracy = json.loads(one.run("cat", f"{output}/result.json").stdout)["test_accuracy"]
    assert abs(accuracy - result["test_accuracy"]) <= 0.002 and accuracy > 0.9
    assert two_.run("ls", f"/data/runs/{other}/output").stdout.split() == ["progress.json"]

    words = ["--args", "--steps 9999 --pause 0.2", "--json"]
    done = fab("deploy", "--workers", "one,two", *words)
    chief, other = (each["id"] for each in json.loads(done.stdout)["results"])
    stopped = json.loads(fab("stop", "--host", "two", "--json").stdout)["results"]
    assert {(each["box"], each["id"]) for each in stopped} == {("one", chief), ("two", other)}
    assert [each["state"]["state"] for each in stopped] == ["stopped", "stopped"]


def runs_on(box):
    return box.run("sh", "-c", "ls /data/runs 2>/dev/null || true").stdout.split()


def test_a_taken_port_is_named_and_nothing_starts(boxes):  # noqa: F811
    one, two_ = start_two(boxes, [])
    two_.run("sh", "-c", "setsid python3 -m http.server 23456 >/dev/null 2>&1 &")
    until(lambda: "23456" in two_.run("ss", "-ltn").stdout, 60, lambda: "no server")
    done = fab("deploy", "--workers", "one,two", "--device", "cpu", code=20)
    assert "two: port 23456 is not free" in done.stderr
    assert runs_on(one) == runs_on(two_) == []


FAILS_ON_TWO = """
import json, os, socket, sys, time
if socket.gethostname() == "two":
    sys.exit(2)
# as the bundled programs do it, which wait for their peers inside TensorFlow
with open(os.path.join(os.environ["GPUBOX_OUTPUT"], "progress.json"), "w") as file:
    json.dump({"schema": 1, "step": 0, "first_step_seconds": None, "phase": "start"}, file)
time.sleep(3600)
"""


def test_where_one_fails_at_its_start_none_runs(boxes, tmp_path):  # noqa: F811
    (tmp_path / "train.py").write_text(FAILS_ON_TWO)
    own = 'runner = "process"\npython = "/usr/bin/python3"\nshared = true\n'
    run = f'[run]\ncode = "{tmp_path}"\ncommand = ["python", "train.py"]\n'
    one = boxes.start("process", "one", toml=own)
    two_ = boxes.start("process", "two", toml=own + run)
    done = fab("deploy", "--workers", "one,two", "--device", "cpu", code=40)
    (failed,), (stopped,) = runs_on(two_), runs_on(one)
    assert f"{failed}: failed" in done.stderr and f"{stopped} stopped" in done.stderr
    assert (state_of(two_, failed), state_of(one, stopped)) == ("failed", "stopped")
    assert one.run("pgrep", "-f", "train.py", check=False).stdout == ""


def test_boxes_that_do_not_reach_each_other_are_named_and_nothing_starts(boxes):  # noqa: F811
    network = f"gpubox-test-{os.getpid()}"
    docker("network", "create", network)  # Docker keeps its networks apart
    try:
        one, two_ = start_two(boxes, [], ("bridge", network))
        done = fab("deploy", "--workers", "one,two", "--device", "cpu", code=20)
        assert "one can't be reached from two at port 23456" in done.stderr
        assert "open port 23456 between the boxes" in done.stderr
        assert runs_on(one) == runs_on(two_) == []
    finally:
        boxes.stop()
        docker("network", "rm", network)


COUNTS = """
import os, time
path = os.path.join(os.environ["GPUBOX_OUTPUT"], "progress.json")
print(os.environ["TF_CONFIG"], flush=True)
for step in range(1, 10**6):
    with open(path + ".new", "w") as file:
        file.write('{"schema": 1, "step": %d, "steps": 1000000}' % step)
    os.rename(path + ".new", path)
    time.sleep(0.1)
"""


def address_of(box):
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    return docker("inspect", "--format", form, box.container).strip()


def test_a_box_that_came_back_under_another_address_is_told_and_met_again(network, boxes, tmp_path):  # noqa: F811
    """Started in vain the workers would fail at their first exchange, at every try."""
    (tmp_path / "train.py").write_text(COUNTS)
    own = 'runner = "process"\npython = "/usr/bin/python3"\nshared = true\n'
    run = f'[run]\ncode = "{tmp_path}"\ncommand = ["python", "train.py"]\n'
    words = ["--network", network]
    one = boxes.start("process", "one", toml=own, more=words)
    two_ = boxes.start("process", "two", toml=own + run, more=words)
    group = ["deploy", "--workers", "one,two", "--device", "cpu", "--json"]
    ids = [each["id"] for each in json.loads(fab(*group).stdout)["results"]]
    two_.pull_the_plug()
    boxes.start("process", "three", toml=own, more=words)  # has the address of two now
    two_.power_on()
    state = lambda: json.loads(two_.run("cat", f"/data/runs/{ids[1]}/state.json").stdout)  # noqa: E731
    fab("status", "--host", "two")  # a pod has nothing that starts its keeper again
    until(lambda: (state().get("ending") or {}).get("kind") == "address", 180, lambda: state())
    said = f"its addresses are {address_of(two_)}: fab deploy --workers one,two goes on"
    assert said in state()["ending"]["text"] and state()["state"] == "interrupted"

    again = json.loads(fab(*group).stdout)["results"]
    assert [each["id"] for each in again] == ids
    hosts = [f"{address_of(box)}:23456" for box in (one, two_)]
    for box, each in zip((one, two_), ids, strict=True):
        assert (
            json.loads(box.run("cat", f"/data/runs/{each}/run.json").stdout)["worker"]["hosts"]
            == hosts
        )
        assert (
            json.dumps(hosts)
            in box.run("sh", "-c", f"tail -n 1 /data/runs/{each}/logs/output*").stdout
        )
        assert state_of(box, each) == "running"
