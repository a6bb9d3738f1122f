"""Several runs on one box: leases per GPU, the queue, and a card that somebody else uses.

`nvidia-smi` is played by a script: the rest (supervisors, locks, queue) is real.
"""

import os
import re
import stat

import pytest

from deploy.effects.program import packed_program
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


# As the bundled workload: `check` looks at the data, and notes who holds a GPU meanwhile.
LOOK = """
import fcntl, os, sys
leases = os.environ["GPUBOX_LEASES"]
folder = os.path.dirname(leases)

def is_held(name):
    with open(os.path.join(leases, name)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False

if sys.argv[1] == "check":
    with open(folder + "/looked", "a") as file:
        file.write("held %s\\n" % [each for each in os.listdir(leases) if is_held(each)])
    if os.path.exists(os.environ["GPUBOX_INPUT"] + "/bad"):
        print("error: labels: 11 is out of range", file=sys.stderr)
        sys.exit(65)
    print("/input: 3 pictures")
    sys.exit(0)
"""


@pytest.fixture
def trainer(box, monkeypatch):
    """`trainer(files)` launches a run of a workload on a GPU over a set of these files."""
    code = box.code

    def packed(program):
        code(program)
        own = box.folder / f"code-{box.number}"
        (own / "workload").mkdir()
        text = LOOK + (own / "train.py").read_text()
        (own / "workload" / "__main__.py").write_text(text)
        return packed_program(own / "workload", None)

    monkeypatch.setattr(box, "code", packed)

    def launch(*files):
        folder = box.folder / "data" / "set"
        folder.mkdir(parents=True)
        for name in files:
            (folder / name).write_text("x")
        data = {"name": "set", "version": "current"}
        command = ["python", "-m", "workload", "cnn"]
        return box.launch(WAIT, device="gpu", gpus="1", data=data, command=command)

    return launch


def test_the_data_are_looked_at_before_a_card_is_taken(box, smi, tmp_path, trainer):
    first = trainer("good")
    assert first["outcome"] == "first-step" and gpus_of(box, first["id"]) == ["GPU-a"]
    assert (tmp_path / "looked").read_text() == "held []\n"
    box.agent.call("stop", run=first["id"])
    again = box.agent.call("resume", run=first["id"], wait=True)
    assert again["outcome"] == "first-step"
    assert (tmp_path / "looked").read_text() == "held []\n", "looked at once"


def test_bad_data_end_the_run_and_no_card_was_taken(box, smi, tmp_path, trainer):
    ended = trainer("bad")
    assert ended["outcome"] == "ended" and ended["state"]["state"] == "failed"
    assert ended["state"]["ending"]["kind"] == "DataError"
    assert "labels: 11 is out of range" in ended["state"]["ending"]["text"]
    assert (tmp_path / "looked").read_text() == "held []\n"
    assert taken(cards()) == {}


def test_who_finds_no_card_after_staging_waits_again(box, smi, tmp_path, trainer, monkeypatch):
    """Another takes the last free card while the data are looked at."""
    (smi / "cards").write_text("GPU-a, 0, T4\n")
    script = f"echo 'GPU-a, 4711' > {smi}/processes"
    look = f"os.system({script!r})\n"
    monkeypatch.setitem(globals(), "LOOK", LOOK.replace("if sys", look + "if sys", 1))
    run = trainer("good")
    assert run["outcome"] == "queued"
    assert "GPU 0 is used by process 4711" in run["state"]["waits_for"]
    (smi / "processes").write_text("")
    assert [each["id"] for each in tend(box.places)] == [run["id"]]
    assert box.until(run["id"], "running")["gpus"] == ["GPU-a"]


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
