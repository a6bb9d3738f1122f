"""`fab gc`: what may go and why; on a real box folder, with a dry run first."""

import os
import sys
import time
from pathlib import Path

import pytest

from deploy.onbox.cleanup import DAY, run_verdict

TABLE = [
    # state, newest step, step at home, age in days, verdict, part of the reason
    ("running", 5, 5, 99, "keep", "it is running"),
    ("queued", -1, -1, 99, "keep", "it is queued"),
    ("interrupted", 5, 5, 99, "keep", "it is interrupted"),
    ("finished", 5, 5, 29, "keep", "limit 30"),
    ("finished", 5, 4, 31, "keep", "step 5 is not home"),
    ("finished", 5, -1, 31, "keep", "not home"),
    ("finished", 5, 5, 31, "remove", "home"),
    ("failed", -1, -1, 31, "remove", "failed 31 days ago"),
    ("stopped", 7, 9, 31, "remove", "stopped"),
]


@pytest.mark.parametrize("state,newest,home,days,verdict,why", TABLE)
def test_which_runs_may_go(state, newest, home, days, verdict, why):
    found = run_verdict({"state": state}, newest, home, days * DAY, 30 * DAY)
    assert found[0] == verdict and why in found[1]


@pytest.mark.slow
def test_it_says_what_each_frees_and_removes_exactly_that(box, monkeypatch):
    done = box.launch("publish(1, size=100_000); progress(1, 1)")["id"]
    not_home = box.launch("publish(1); progress(1, 1)")["id"]
    for run in (done, not_home):
        box.until(run, "finished")
    box.agent.call("home", run=done, step=1, where="laptop")
    staged = Path(box.places.input, ".gpubox")
    for name in ("mnist@new", "mnist@old"):
        (staged / name).mkdir(parents=True)
        (staged / name / "file").write_bytes(b"x" * 50_000)
    Path(box.places.input, "mnist").symlink_to(".gpubox/mnist@new")
    left = Path(box.places.runs, ".new-20261130-0930-test-beef")
    left.mkdir()
    os.utime(left, (time.time() - 2 * DAY,) * 2)
    program = Path(box.places.home, "onbox-0123456789abcdef.pyz")
    program.write_bytes(b"an older one")

    planned = box.agent.call("gc", days=0, dry_run=True)["items"]
    verdicts = {item["name"]: item["verdict"] for item in planned if item["kind"] != "image"}
    current = {n for n in verdicts if n.startswith("onbox-") and n != program.name}
    assert {name for name, verdict in verdicts.items() if verdict == "remove"} == {
        *(done, "mnist@old", left.name, program.name)
    }
    assert verdicts[not_home] == "keep" and verdicts["mnist@new"] == "keep"
    assert all(verdicts[name] == "keep" for name in current) and current
    assert next(i["bytes"] for i in planned if i["name"] == "mnist@old") >= 50_000
    assert Path(box.places.runs, done).exists() and program.exists()  # it was a dry run

    # This machine's engine is everybody's: the box that clears away has none.
    tools = box.folder / "bin"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tools}")
    box.agent.call("gc", days=0)
    for path in (left, program, staged / "mnist@old", Path(box.places.runs, done)):
        assert not path.exists()
    assert Path(box.places.runs, not_home).exists() and (staged / "mnist@new" / "file").exists()
    assert box.agent.call("status")["runs"][0]["id"] == not_home
