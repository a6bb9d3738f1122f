"""Several runs on one box: leases per GPU, the queue, and a card that somebody else uses.

`nvidia-smi` is played by a script: the rest (supervisors, locks, queue) is real.
"""

import os
import re
import stat

import pytest

from deploy.errors import GpuError
from deploy.onbox.leases import Leases, cards, holder_of, taken
from deploy.onbox.runs import record
from deploy.onbox.tending import tend

NVIDIA_SMI = """#!/bin/sh
case "$*" in
*--query-gpu=uuid,index,name*) cat "{folder}/cards" ;;
*--query-gpu=uuid,name*) sed 's/^\\([^,]*\\), [^,]*, /\\1, /; s/$/, 16000, 550.1/' "{folder}/cards" ;;
*--query-compute-apps*) cat "{folder}/processes" ;;
esac
"""
WAIT = """
progress(1, 2)
print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["REQUIRE_GPU"], flush=True)
try:
    time.sleep(600)
except Ending:
    sys.exit(75)
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A box with two cards; `smi.processes` lists foreign processes on them."""
    folder = tmp_path / "smi"
    folder.mkdir()
    (folder / "cards").write_text("GPU-a, 0, T4\nGPU-b, 1, T4\n")
    (folder / "processes").write_text("")
    script = folder / "nvidia-smi"
    script.write_text(NVIDIA_SMI.format(folder=folder))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def gpus_of(box, run):
    return record(box.places, run)["state"]["gpus"]


def test_each_run_gets_its_own_card_and_the_third_waits_until_one_ends(box, smi):
    first = box.launch(WAIT, device="gpu", gpus="1")
    second = box.launch(WAIT, device="gpu", gpus="1")
    assert gpus_of(box, first["id"]) == ["GPU-a"] and gpus_of(box, second["id"]) == ["GPU-b"]
    third = box.launch(WAIT, device="gpu", gpus="1")
    assert third["outcome"] == "queued"
    assert f"GPU 0 is used by run {first['id']}" in third["state"]["waits_for"]
    assert tend(box.places) == []  # there is nothing to start yet
    box.agent.call("stop", run=second["id"])
    box.until(third["id"], "running")  # the run that ended has started the next
    assert gpus_of(box, third["id"]) == ["GPU-b"]


def test_the_queue_keeps_its_order(box, smi):
    first = box.launch(WAIT, device="gpu", gpus="all")["id"]
    big = box.launch(WAIT, device="gpu", gpus="all")["id"]
    small = box.launch(WAIT, device="gpu", gpus="1")["id"]
    box.agent.call("stop", run=first)
    box.until(big, "running")
    assert gpus_of(box, big) == ["GPU-a", "GPU-b"]
    assert box.state(small)["state"] == "queued"
    box.agent.call("stop", run=big)
    box.until(small, "running")


def test_a_queued_run_is_stopped_and_never_starts(box, smi):
    first = box.launch(WAIT, device="gpu")["id"]
    waiting = box.launch(WAIT, device="gpu")["id"]
    state = box.agent.call("stop", run=waiting)["state"]
    assert state["state"] == "stopped" and "before it began" in state["ending"]["text"]
    box.agent.call("stop", run=first)
    assert tend(box.places) == []


def test_a_card_that_somebody_else_uses_counts_as_taken(box, smi):
    (smi / "processes").write_text("GPU-a, 4711\n")
    run = box.launch(WAIT, device="gpu", gpus="1")
    assert gpus_of(box, run["id"]) == ["GPU-b"]
    waits = box.launch(WAIT, device="gpu", gpus="gpu0")
    assert "GPU 0 is used by process 4711" in waits["state"]["waits_for"]
    (smi / "processes").write_text("")
    assert [each["id"] for each in tend(box.places)] == [waits["id"]]
    box.until(waits["id"], "running")


def test_more_than_there_are_is_refused_before_anything_is_made(box, smi):
    with pytest.raises(GpuError, match="3 GPUs asked for, 2 here"):
        box.launch(WAIT, device="gpu", gpus="3")


def test_a_lost_card_is_told(box, smi):
    run = box.launch(
        "progress(1, 2)\ntime.sleep(1.5)\nprint('CUDA_ERROR_UNKNOWN')\nsys.exit(1)",
        device="gpu",
        gpus="gpu1",
    )["id"]
    (smi / "cards").write_text("GPU-a, 0, T4\n")
    state = box.until(run, "failed")
    assert state["ending"]["kind"] == "gpu-lost" and "GPU-b" in state["ending"]["text"]


def test_leases_are_all_or_none_and_end_with_their_holder(tmp_path, monkeypatch, smi):
    monkeypatch.setenv("GPUBOX_LEASES", str(tmp_path / "leases"))
    one, other = Leases(), Leases()
    assert one.take(["GPU-b"], "run-1")
    assert not other.take(["GPU-a", "GPU-b"], "run-2")
    assert other.gpus == [] and holder_of("GPU-a") == ""
    assert holder_of("GPU-b").startswith("run run-1 of ")
    assert list(taken(cards())) == ["GPU-b"]
    one.release()
    assert other.take(["GPU-a", "GPU-b"], "run-2")
    assert stat.S_IMODE(os.stat(tmp_path / "leases" / "GPU-a").st_mode) == 0o666


def test_the_kit_says_where_it_was_itself_who_hid_gpus(tmp_path):
    """The workload warns of a CUDA_VISIBLE_DEVICES that the kit has not set."""
    from deploy.effects.settings import root
    from deploy.onbox.evaluate import container_words
    from deploy.onbox.process_runner import gpu_environment

    for device, gpus in (("cpu", []), ("gpu", ["GPU-1", "GPU-2"])):
        found = gpu_environment({"device": device}, gpus)
        assert found["GPUBOX_CUDA_VISIBLE_DEVICES"] == found["CUDA_VISIBLE_DEVICES"]
    assert "GPUBOX_CUDA_VISIBLE_DEVICES=-1" in container_words(
        "image", {"/checkpoint": "/c"}, ["x"]
    )
    setting = re.compile(r"""(?<!GPUBOX_)CUDA_VISIBLE_DEVICES["']?(\s*=(?!=)|:\s*\S|\])""")
    setters = [
        path.name
        for path in [*(root() / "deploy").rglob("*.py"), root() / "compose.yaml"]
        for line in path.read_text().splitlines()
        if setting.search(line)
    ]
    assert setters == ["process_runner.py"]  # visible_gpus alone, which sets both
