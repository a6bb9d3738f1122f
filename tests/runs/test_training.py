"""Real training of the kit's own workload on MNIST: launch, resume, begin from, evaluate, bits."""

import json
import os
import signal
from pathlib import Path

import pytest

from bench import mnist
from deploy.effects.homecoming import Homecoming
from deploy.effects.program import packed_program
from deploy.effects.pushing import push_checkpoint
from deploy.effects.settings import root
from deploy.errors import VerifyError
from deploy.onbox.runs import record, supervisor_pid
from deploy.onbox.steps import checkpoint_steps

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
BP = ["python", "-m", "workload", "bp", "--steps", "600", "--save-every", "50"]
LONG = ["python", "-m", "workload", "bp", "--steps", "6000", "--save-every", "200"]


@pytest.fixture(scope="module")
def python():
    """A Python with TensorFlow: `make test` makes it."""
    found = root() / ".venv-train" / "bin" / "python"
    if not found.exists():
        pytest.skip("no .venv-train: make test makes it")
    return str(found)


@pytest.fixture
def train(box, python):
    """Launch the workload on MNIST, which somebody has put on /data."""
    shelf = Path(box.places.data, "mnist")
    shelf.mkdir(parents=True)
    for source in mnist.folder().iterdir():
        os.link(source, shelf / source.name) if _same_disk(source, shelf) else _copy(source, shelf)

    def start(command=BP, **more):
        code = packed_program(root() / "workload", None)
        data = {"name": "mnist", "version": "current"}
        request = {"command": command, "code": code, "python": python, "data": data, **more}
        return box.launch("", needs="tensorflow", **request)

    return start


def _same_disk(source, target):
    return source.stat().st_dev == target.stat().st_dev


def _copy(source, target):
    (target / source.name).write_bytes(source.read_bytes())


def result_of(box, run):
    return json.loads(Path(record(box.places, run)["folder"], "output/result.json").read_text())


def test_interrupted_twice_it_ends_with_the_same_bits_as_one_left_alone(box, train):
    alone = train(LONG)
    assert alone["outcome"] == "first-step"
    box.until(alone["id"], "finished", seconds=240)
    run = train(LONG)["id"]
    box.wait(lambda: checkpoint_steps(record(box.places, run)["folder"]))
    os.killpg(record(box.places, run)["state"]["handle"]["pid"], signal.SIGKILL)
    box.until(run, "failed")
    box.agent.call("resume", run=run, wait=True)
    box.wait(lambda: record(box.places, run)["state"]["state"] == "running")
    os.kill(supervisor_pid(box.places, run), signal.SIGTERM)  # as a box that is shut down does
    state = box.until(run, "interrupted", seconds=120)
    assert "the shutdown of the box" in state["ending"]["text"] and state["exit_code"] == 75
    box.agent.call("resume", run=run, wait=True)
    box.until(run, "finished", seconds=240)
    one, other = result_of(box, alone["id"]), result_of(box, run)
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["state_sha256"] == other["state_sha256"]


def test_a_fetched_checkpoint_evaluates_and_another_run_goes_on_from_it(
    box, train, python, tmp_path
):
    run = train()["id"]
    box.until(run, "finished", seconds=240)
    home = Homecoming(tmp_path / "home")
    step = home.receive(box.agent, run, "last", files=True)["steps"][-1]
    checkpoint = home.checkpoints / step
    on_the_box = box.agent.call("evaluate", run=run, step=step)
    here = box.agent.call(
        "evaluate",
        path=str(checkpoint),
        data=str(mnist.folder()),
        runner="process",
        python=python,
        code=packed_program(root() / "workload", None),
    )
    assert on_the_box["test_accuracy"] == here["test_accuracy"] > 0.5
    # from home to a box, and from a run of the same box
    pushed = box.ask("")["id"]
    assert push_checkpoint(box.agent, pushed, checkpoint, lambda count: None)["step"] == step
    command = [*BP[:5], "700", *BP[6:]]
    ends = []
    for origin, name in [({"folder": "x"}, pushed), ({"run": run, "step": step}, None)]:
        more = {"id": name} if name else {}
        begun = train(command, origin=origin, **more)["id"]
        box.until(begun, "finished", seconds=240)
        ends.append(result_of(box, begun)["state_sha256"])
    assert ends[0] == ends[1]


def test_a_checkpoint_that_is_not_whole_is_not_evaluated(box, train, python, tmp_path):
    run = train()["id"]
    box.until(run, "finished", seconds=240)
    home = Homecoming(tmp_path / "home")
    step = home.receive(box.agent, run, "last", files=False)["steps"][-1]
    with (home.checkpoints / step / "state.npz").open("r+b") as file:
        file.seek(1000)
        file.write(b"x")
    with pytest.raises(VerifyError):
        box.agent.call(
            "evaluate",
            path=str(home.checkpoints / step),
            data=str(mnist.folder()),
            runner="process",
            python=python,
            code=packed_program(root() / "workload", None),
        )
