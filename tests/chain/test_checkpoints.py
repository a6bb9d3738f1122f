"""A checkpoint's whole way: fetched, evaluated on the box and at home, begun from on a box; in
containers, and by a login that is not root."""

from pathlib import Path

import pytest

from tests.chain.kit import fab
from tests.chain.test_chain import eventually

pytestmark = [pytest.mark.box, pytest.mark.engine, pytest.mark.tensorflow, pytest.mark.slow]
CONFIG = """
[data.mnist]
path = "~/.gpubox/sets/mnist"
[run]
data = "mnist"
command = ["python", "-m", "workload", "bp", "--save-every", "200"]
"""


def ended(box, run):
    """The run's state.json once it has ended."""

    def look():
        (found,) = fab("status", "--host", box.name, "--run", run, "--json")[0]["runs"]
        return found["state"]["ending"] and found["state"]

    return eventually(look, 300)


@pytest.mark.timeout(1200)  # six starts of TensorFlow
def test_evaluated_here_and_there_and_begun_from(boxes, cpu_image, tmp_path):
    boxes.more = CONFIG
    box = boxes.start("engine", user="dev", toml="device = 'cpu'")
    box.load(cpu_image)
    fab("get", "mnist")
    at = ["--host", box.name]
    (first,) = fab("deploy", *at, "--args", "--steps 400", "--json")
    assert ended(box, first["id"])["state"] == "finished"

    (there,) = fab("evaluate", *at, "--json")
    (home,) = fab("fetch", *at, "--to", str(tmp_path / "home"), "--json")
    folder = Path(home["folder"], "output", "checkpoints", "step_00000400")
    (here,) = fab("evaluate", str(folder), "--data", "mnist", "--host", "local", "--json")
    assert here["test_accuracy"] == there["test_accuracy"] > 0.5
    assert here["state_sha256"] == there["state_sha256"]

    more = ["--args", "--steps 600", "--json"]
    begun = fab("launch", *at, "--from", str(folder), *more)[0]["id"]
    assert ended(box, begun)["state"] == "finished"
    assert "resumed from step_00000400" in fab("logs", *at, "--run", begun)
