"""A box of this machine without SSH, and programs that keep the workload's contract in few lines."""

import sys
import textwrap
import time

import pytest

from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink
from deploy.effects.program import packed_program
from deploy.onbox.places import Places
from deploy.onbox.runs import ENDED, list_runs, record, supervisor_pid

# Publishes step folders with checksums, replaces progress.json, saves on SIGTERM and exits 75.
PROGRAM = """
import hashlib, json, os, shutil, signal, sys, time
out = os.environ["GPUBOX_OUTPUT"]
ckpt = os.path.join(out, "checkpoints")
os.makedirs(ckpt, exist_ok=True)

def publish(step, size=1000, keep=0):
    part = os.path.join(ckpt, ".part-%d" % step)
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    content = {"weights": os.urandom(size), "meta.json": json.dumps({"step": step}).encode()}
    with open(part + "/SHA256SUMS", "w") as sums:
        for name, data in content.items():
            open(os.path.join(part, name), "wb").write(data)
            sums.write(hashlib.sha256(data).hexdigest() + "  " + name + "\\n")
    shutil.rmtree(os.path.join(ckpt, "step_%08d" % step), ignore_errors=True)
    os.rename(part, os.path.join(ckpt, "step_%08d" % step))
    replace(os.path.join(ckpt, "LATEST"), "step_%08d\\n" % step)
    steps = sorted(n for n in os.listdir(ckpt) if n.startswith("step_"))
    for old in steps[:-keep] if keep else []:
        shutil.rmtree(os.path.join(ckpt, old))

def replace(path, text):
    open(path + ".tmp", "w").write(text)
    os.replace(path + ".tmp", path)

def progress(step, steps):
    replace(os.path.join(out, "progress.json"), json.dumps({"schema": 1, "step": step, "steps": steps}))

def newest():
    steps = sorted(n for n in os.listdir(ckpt) if n.startswith("step_"))
    return int(steps[-1][5:]) if steps else 0

class Ending(Exception):
    pass

def asked(number, frame):
    raise Ending()
signal.signal(signal.SIGTERM, asked)
"""


class TestBox:
    """A box with folders of its own, reached by a local link."""

    __test__ = False

    def __init__(self, folder, home):
        self.folder = folder
        self.folders = {"data": str(folder / "data"), "input": str(folder / "input")}
        self.places = Places(
            self.folders["data"],
            self.folders["input"],
            str(folder / "data" / "runs"),
            str(home),
            [],
        )
        self.agent = Agent(LocalLink(), self.folders)
        self.number = 0

    def code(self, program):
        """A program folder with train.py: the helpers above, then `program`."""
        self.number += 1
        own = self.folder / f"code-{self.number}"
        own.mkdir(parents=True)
        (own / "train.py").write_text(PROGRAM + textwrap.dedent(program))
        return packed_program(None, own)

    def ask(self, program, **more):
        request = {
            "id": f"20261130-0930-test-{self.number:04x}",
            "code": self.code(program),
            "command": ["python", "train.py"],
            "runner": "process",
            "python": sys.executable,
            "device": "cpu",
            "gpus": "all",
            "stop_grace": 20,
            "shm_size": "64mb",
            "wait": True,
        }
        return {**request, **more}

    def launch(self, program, **more):
        """The box's report on the start of a run of `program`."""
        return self.agent.call("launch", **self.ask(program, **more))

    def state(self, run):
        return record(self.places, run)["state"]

    def wait(self, true, seconds=60):
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"not so within {seconds} s"
            time.sleep(0.05)

    def until(self, run, *wanted, seconds=60):
        """Wait for one of these states, and for its supervisor to be gone where it is an end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.state(run)
            gone = state["state"] not in ENDED or not supervisor_pid(self.places, run)
            if state["state"] in wanted and gone:
                return state
            time.sleep(0.05)
        raise AssertionError(f"{run} is {self.state(run)}, not {wanted}, after {seconds} s")

    def end(self):
        """Stop whatever still runs."""
        for each in list_runs(self.places):
            if not each.get("damaged") and each["state"]["state"] not in ENDED:
                self.agent.call("stop", run=each["id"], grace=0)


@pytest.fixture
def box(tmp_path, own_home, installed, monkeypatch):
    monkeypatch.setenv("GPUBOX_LEASES", str(tmp_path / "leases"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    made = TestBox(tmp_path / "box", own_home / ".gpubox")
    yield made
    made.end()
