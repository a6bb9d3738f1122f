"""`fab bench`: CPU against GPU as table and bars, with one side where there is no GPU."""

import json
from pathlib import Path

import pytest

from deploy.effects.settings import root
from deploy.plan.bench import bars, rows
from tests.chain.kit import fab

SIDE = {"seconds": 4.04, "first_step_seconds": 1.5, "wall_seconds": 9, "test_accuracy": 0.913}
CPU = {**SIDE, "steps_per_second": 30.0, "device": "EPYC"}
GPU = {**SIDE, "steps_per_second": 300.0, "device": "L4"}


def test_two_sides_are_shown_with_bars_by_rate():
    both = {"sides": {"cpu": CPU, "gpu": GPU}, "speedup": 10.0}
    assert rows(both["sides"])[0] == ("CPU", "30.0", "4.0 s", "1.5 s", "9.0 s", "91.30 %", "EPYC")
    assert bars(both) == [
        "CPU  █████ 30.0 steps/s",
        f"GPU  {50 * '█'} 300.0 steps/s",
        "The GPU is 10.0 times as fast.",
    ]
    assert "only one side" in bars({"sides": {"cpu": CPU}})[-1]


@pytest.mark.sshd
@pytest.mark.tensorflow
@pytest.mark.slow
def test_on_a_box_without_a_gpu_it_measures_one_side_and_says_so(sshd, tmp_path):
    python = root() / ".venv-train" / "bin" / "python"
    if not python.exists():
        pytest.skip("no .venv-train: make test makes it")
    fab("get", "mnist")
    server = sshd(toml=f'runner = "process"\npython = "{python}"\n[run]\ndata = "mnist"')
    (server.data / "mnist").symlink_to(Path("~/.gpubox/sets/mnist").expanduser())
    words = ["bench", "--host", "box", "--model", "bp", "--steps", "30"]
    (found,) = fab(*words, "--json")
    assert list(found["sides"]) == ["cpu"] and found["sides"]["cpu"]["steps_per_second"] > 0
    assert (found["model"], found["steps"]) == ("bp", 30) and "speedup" not in found
    (runs,) = fab("status", "--host", "box", "--json")
    assert [each["id"] for each in runs["runs"]] == [found["id"]]
    said = fab(*words)
    assert "steps/s" in said and "█" in said and "only one side" in said
    assert json.dumps(fab("bench", "--host", "box", "--model", "x", code=2))
