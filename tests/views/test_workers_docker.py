"""Two boxes with an engine each train the bundled program in containers: killed, rebooted, finished."""

import json
import subprocess

import pytest

from bench import mnist
from tests.box.fixtures import boxes, cpu_image, engine  # noqa: F401
from tests.views.test_workers import (  # noqa: F401
    curve,
    docker,
    fab,
    logs_of,
    network,
    state_of,
    step_of,
    until,
)

pytestmark = [pytest.mark.engine, pytest.mark.box, pytest.mark.slow, pytest.mark.tensorflow]
pytestmark += [pytest.mark.timeout(2400)]  # on a busy machine
STEPS = 8000  # half a minute of a quick machine: time for both blows
FLAGS = ["--batch", "120", "--hidden", "60", "--learning-rate", "0.05", "--pixel-scale", "255"]
FLAGS += ["--steps", str(STEPS), "--save-every", "200", "--log-every", "50"]
# As in test_workers: the same batches, with floats added in another order.
FIRST, OF_FIRST, OF_ALL, OF_ACCURACY = 200, 1e-4, 0.05, 0.003


def config():
    """MNIST and the bundled program, as gpubox.toml names them."""
    return f"""
[data.mnist]
path = {json.dumps(str(mnist.folder()))}
[run]
data = "mnist"
command = ["python", "-m", "workload", "bp"]
"""


def alone(folder):
    """The same training by one worker, in the same image: its curve and its test accuracy."""
    mounts = ["-v", f"{mnist.folder()}:/input:ro", "-v", f"{folder}:/output"]
    program = ["python", "-m", "workload", "bp", *FLAGS]
    docker("run", "--rm", "--user", "0:0", *mounts, "gpubox/cpu:latest", *program)
    result = json.loads((folder / "result.json").read_text())
    return curve((folder / "metrics.jsonl").read_text()), result["test_accuracy"]


def container_of(box, run):
    words = ["docker", "ps", "-q", "--filter", f"label=gpubox.run={run}"]
    return box.run(*words, check=False).stdout.strip()


def start_two(boxes, network):  # noqa: F811
    boxes.more = config()
    words = {"toml": 'device = "cpu"', "more": ["--network", network]}
    return [boxes.start("engine", name, **words) for name in ("one", "two")]


def test_one_is_killed_then_rebooted_and_both_finish(network, boxes, cpu_image, tmp_path):  # noqa: F811
    one, two_ = start_two(boxes, network)
    for box in (one, two_):
        box.load(cpu_image)
    done = fab("deploy", "--workers", "one,two", "--args", " ".join(FLAGS), "--json")
    chief, other = (each["id"] for each in json.loads(done.stdout)["results"])
    say = lambda: logs_of(one) + logs_of(two_)  # noqa: E731
    mode = "{{.HostConfig.NetworkMode}}"
    found = one.run("docker", "inspect", "--format", mode, container_of(one, chief))
    assert found.stdout.strip() == "host", "peers know it by the box's own address"

    until(lambda: step_of(one, chief) >= 500, 300, say)
    two_.run("docker", "kill", "--signal", "KILL", container_of(two_, other))
    killed_at = step_of(one, chief)
    until(lambda: killed_at + 500 <= step_of(one, chief) < STEPS, 300, say)

    two_.pull_the_plug()
    rebooted_at = step_of(one, chief)
    assert rebooted_at < STEPS, "the machine was too quick for this test"
    two_.power_on()
    until(lambda: [state_of(one, chief), state_of(two_, other)] == ["finished"] * 2, 600, say)

    for box, run in ((one, chief), (two_, other)):
        way = json.loads(box.run("cat", f"/data/runs/{run}/state.json").stdout)["history"]
        assert [each["state"] for each in way].count("interrupted") >= 2, way
    output = f"/data/runs/{chief}/output"
    expected, accuracy_alone = alone(tmp_path)
    losses = curve(one.run("cat", f"{output}/metrics.jsonl").stdout)
    assert losses.keys() == expected.keys()
    apart = {step: abs(losses[step] - expected[step]) / expected[step] for step in losses}
    assert max(apart[step] for step in apart if step <= FIRST) <= OF_FIRST, apart
    assert max(apart.values()) <= OF_ALL, apart
    accuracy = json.loads(one.run("cat", f"{output}/result.json").stdout)["test_accuracy"]
    assert accuracy > 0.9 and abs(accuracy - accuracy_alone) <= OF_ACCURACY
    print(f"curves apart {max(apart.values()):.4f}; accuracy {accuracy} against {accuracy_alone}")


BREAK = "rm /usr/sbin/runc"


def test_where_one_engine_can_not_start_a_container_none_runs(network, boxes, cpu_image):  # noqa: F811
    one, two_ = start_two(boxes, network)
    for box in (one, two_):
        box.load(cpu_image)
    subprocess.run(["docker", "exec", two_.container, "sh", "-c", BREAK], check=True)
    done = fab("deploy", "--workers", "one,two", "--args", " ".join(FLAGS), code=40)
    (failed,) = two_.run("ls", "/data/runs").stdout.split()
    (stopped,) = one.run("ls", "/data/runs").stdout.split()
    assert f"{failed}: failed" in done.stderr and f"{stopped} stopped" in done.stderr
    assert (state_of(two_, failed), state_of(one, stopped)) == ("failed", "stopped")
    assert container_of(one, stopped) == ""
