"""Two workers with TensorFlow's own strategy: the same curve as one, and they resume together."""

import json
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.workload.kit import ROOT, Nursery, Workload, wait_until
from workload import checkpoint, errors, workers

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
FLAGS = ["--batch", 40, "--hidden", 30, "--pixel-scale", 255]
FLAGS += ["--learning-rate", 0.05, "--log-every", 100]


@pytest.fixture
def pair(tmp_path, small_set):
    """Two workers, each with an output of its own."""
    made = [Workload(tmp_path / f"worker{n}", small_set, Nursery()) for n in range(2)]
    yield made
    for each in made:
        each.nursery.close()


def start(pair, *arguments):
    """Starts both on free ports; returns their process ids."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in pair]
    names = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    pids = []
    for index, worker in enumerate(pair):
        config = {"cluster": {"worker": names}, "task": {"type": "worker", "index": index}}
        pids.append(worker.start("bp", *FLAGS, *arguments, TF_CONFIG=json.dumps(config)))
    return pids


def curve(run):
    rows = [json.loads(x) for x in (run.output / "metrics.jsonl").read_text().splitlines()]
    return np.array([[row["step"], row["loss"]] for row in rows])


def test_two_workers_follow_the_curve_of_one_and_resume_when_one_is_killed(pair, workload):
    one = workload("bp", *FLAGS, "--steps", 400)
    assert one[0] == 0
    pids = start(pair, "--steps", 10_000_000, "--save-every", 100)
    wait_until(lambda: 300 in checkpoint.steps(pair[0].checkpoints))
    os.kill(pids[1], signal.SIGKILL)
    assert pair[1].end()[0] == -signal.SIGKILL
    code, _, err = pair[0].end()
    assert code == errors.INTERRUPTED and "another worker went away" in err[-1]
    assert checkpoint.steps(pair[1].checkpoints) == []  # only the chief saves
    found, _ = checkpoint.newest(pair[0].checkpoints)
    last = int(found.name.removeprefix("step_")) + 100
    start(pair, "--steps", last)
    assert [each.end()[0] for each in pair] == [0, 0]
    results = [json.loads((each.output / "result.json").read_text()) for each in pair]
    assert results[0]["state_sha256"] == results[1]["state_sha256"]
    assert results[0]["step"] == last
    one_curve, two = curve(workload), curve(pair[0])
    shared = min(len(one_curve), len(two), 4)
    np.testing.assert_array_equal(one_curve[:shared, 0], two[:shared, 0])
    np.testing.assert_allclose(one_curve[:shared, 1], two[:shared, 1], rtol=1e-4)


def test_a_stop_is_heard_although_tensorflow_catches_the_signal_too(pair):
    pids = start(pair, "--steps", 10_000_000, "--save-every", 100)
    wait_until(lambda: 100 in checkpoint.steps(pair[0].checkpoints))
    os.kill(pids[0], signal.SIGTERM)
    code, _, err = pair[0].end()
    assert code == errors.INTERRUPTED and "stopped by SIGTERM" in err[-1]
    code, _, err = pair[1].end()
    assert code == errors.INTERRUPTED and "another worker went away" in err[-1]


def test_a_batch_that_can_not_be_shared_is_refused(pair):
    start(pair, "--steps", 10, "--batch", 41)
    for each in pair:
        code, _, err = each.end()
        assert code == 1 and "--batch 41 can't be shared equally by 2 devices" in err[0]


def test_the_cluster_is_read_from_the_environment():
    config = {"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 2}}
    assert workers.cluster({"TF_CONFIG": json.dumps(config)}) == (3, 2)
    assert workers.cluster({}) == (0, 0)
    with pytest.raises(errors.WorkloadError, match="TF_CONFIG can't be read"):
        workers.cluster({"TF_CONFIG": "{}"})


MIRRORED = """
import argparse, sys
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from workload import flags
from workload.loop import Loop

random = np.random.default_rng(0)
images = tf.constant(random.integers(0, 256, (90, 12, 10, 1), dtype=np.uint8))
labels = tf.constant(random.integers(0, 4, 90, dtype=np.int32))
rows = random.integers(0, 90, (6, 8)).astype(np.int32)
model = sys.argv[1]
small = {"cnn": dict(conv1=3, conv2=4, dense=9, learning_rate=0.01),
         "bp": dict(hidden=9, pixel_scale=255.0, learning_rate=0.3)}[model]
values = {flag.name: flag.default for flag in flags.PROGRAMS[model]} | small | dict(batch=8)
found = []
for strategy in (None, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
    loop = Loop(argparse.Namespace(model=model, **values), (12, 10, 1), 4, 11.0, strategy)
    before = loop.snapshot()
    loss, finite = loop.train(images, labels, rows, np.int32(0))
    found.append((float(loss), loop.snapshot()))
    assert bool(finite) and loop.replicas == (2 if strategy else 1)
for name, one in found[0][1].items():
    assert not np.array_equal(one, before[name]), name
    np.testing.assert_allclose(found[1][1][name], one, rtol=1e-3, atol=1e-5, err_msg=name)
np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
print(model, "agrees")
"""


@pytest.mark.parametrize("model", ["cnn", "bp"])
def test_two_devices_of_one_process_do_the_arithmetic_of_one(model):
    """By MirroredStrategy on two logical CPUs, dropout included."""
    command = [sys.executable, "-c", MIRRORED, model]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"{model} agrees\n", done.stderr[-3000:]
