"""Many boxes at once: what each line says, and real sshds of which some are silent, new or changed."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from deploy.effects.copies import last_copy
from deploy.effects.fleet import asked, quick_exchange, with_quick_exchange
from deploy.onbox.overview import summed_up, write_overview
from deploy.onbox.places import Places, own_folder
from deploy.onbox.runs import list_runs
from deploy.plan.fleet import HEADS, Seen, gpu, money, row, shown, state_of

ROOT = Path(__file__).resolve().parents[2]
FAB = Path(sys.executable).parent / "fab"
NOW = datetime(2026, 11, 30, 14, 0).timestamp()
PROGRESS = {
    "step": 1200,
    "steps": 20000,
    "validation_accuracy": 0.9612,
    "accuracy": 1.0,
    "eta_seconds": 568,
}
RUN = {
    "id": "20261130-0930-cnn-3f9a",
    "mine": True,
    "state": {"state": "running", "since": NOW - 60},
    "progress": PROGRESS,
}
KEEPER = {
    "armed": True,
    "after_reboot": True,
    "hold": None,
    "rule": {"rule": {"enabled": True, "stop_after": 1800}, "stop": {"how": "inside"}},
    "status": {
        "decision": {"cause": "idle", "idle_for": 720, "stops_in": 300, "action": "keep"},
        "signals": {"gpu": ["active", "93 %"]},
    },
}
FOUND = {"now": NOW, "runs": [RUN], "alive": 1, "waiting": 0, "keeper": KEEPER, "hours": {}}


def cells(found, **seen):
    return dict(zip(HEADS, row(Seen("box", found, NOW, **seen), NOW + 180, "USD"), strict=True))


def test_a_line_says_what_matters():
    assert cells(FOUND) == {
        "box": "box",
        "state": "running",
        "GPU": "93 %",
        "run": "cnn-3f9a",
        "step": "1,200 / 20,000",
        "right": "96.1 %",
        "left": "9 min 28 s",
        "auto-stop": "12 min idle of 30 min, stops 14:08",
        "today": "",
    }


def test_a_box_that_does_not_answer_shows_its_last_words_and_their_age():
    said = cells(FOUND, fault="no answer within 10 s")
    assert (
        said["state"] == "no answer within 10 s; 3 min ago: running" and said["run"] == "cnn-3f9a"
    )
    assert row(Seen("new", None, 0, "unknown host key"), NOW, "USD")[:2] == (
        "new",
        "unknown host key",
    )


@pytest.mark.parametrize(
    "change, state",
    [
        ({"runs": [], "alive": 0}, "no run yet"),
        ({"alive": 3}, "running (+2)"),
        ({"waiting": 2}, "running, 2 waiting"),
    ],
)
def test_states(change, state):
    assert state_of({**FOUND, **change}) == state


def test_an_unknown_gpu_is_not_none():
    assert gpu({"keeper": None}) == "?"
    absent = {"status": {"signals": {"gpu": ["absent", "no NVIDIA GPU"]}}}
    assert gpu({"keeper": absent}) == "none"


def test_no_keeper_is_loud():
    assert cells({**FOUND, "keeper": None})["auto-stop"] == "NOT armed"


def test_today_is_the_readers_day():
    def key(hour, day=30):
        there = datetime(2026, 11, day, hour).astimezone(timezone.utc)
        return there.strftime("%Y-%m-%dT%H")

    hours = {key(23, 29): [3600, 1.2], key(0): [3600, 1.2], key(1): [1800, 0.6]}
    assert money({"hours": hours}, NOW, "EUR") == "1.80 EUR"
    free = {hour: [on, 0.0] for hour, (on, _) in hours.items()}
    assert money({"hours": free}, NOW, "EUR") == "1 h 30 min"


def test_the_keeper_writes_an_answer_that_a_shell_can_give(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBOX_HOME", str(tmp_path / "own"))
    (tmp_path / "own").mkdir()
    put_run(tmp_path / "runs" / RUN["id"])
    places = Places(str(tmp_path), str(tmp_path), str(tmp_path / "runs"), str(tmp_path / "own"), [])
    write_overview(places, [])
    answer = json.loads((tmp_path / "own" / "overview.json").read_text())
    (said,) = answer["ok"]["runs"]
    assert said["id"] == RUN["id"] and said["progress"]["step"] == 7
    assert answer["ok"]["alive"] == 0 and answer["ok"]["keeper"]["armed"] is False
    assert os.stat(tmp_path / "own" / "overview.json").st_mode & 0o077 == 0


def put_run(folder):
    """A run that has ended, as its files tell it."""
    (folder / "output").mkdir(parents=True)
    (folder / "run.json").write_text('{"schema": 1, "command": ["x"], "created": 5}')
    (folder / "state.json").write_text('{"schema": 1, "state": "finished", "since": 5}')
    (folder / "output" / "progress.json").write_text('{"step": 7, "steps": 9}')


def test_the_overview_on_the_page_of_formats_is_one(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "formats.md").read_text()
    text = re.search(r"<!-- example: overview.json -->\n```json\n(.*?)```", page, re.DOTALL)[1]
    example = json.loads(text)["ok"]
    assert cells(example)["step"] == "1,200 / 20,000"
    monkeypatch.setenv("GPUBOX_HOME", str(tmp_path / "own"))
    put_run(tmp_path / "runs" / RUN["id"])
    real = summed_up(
        Places(str(tmp_path), str(tmp_path), str(tmp_path / "runs"), own_folder(), []),
        list_runs(Places("", "", str(tmp_path / "runs"), own_folder(), [])),
    )
    assert example.keys() == real.keys() and example["keeper"].keys() == real["keeper"].keys()
    assert example["runs"][0].keys() == real["runs"][0].keys()
    assert example["disks"]["data"].keys() == real["disks"]["data"].keys()


def fab(*words):
    return subprocess.run([FAB, *words], cwd=ROOT, capture_output=True, text=True)


def put_overview(server, found=FOUND):
    """What the box's keeper would have written just now."""
    folder = server.home / ".gpubox"
    folder.mkdir(exist_ok=True)
    (folder / "overview.json").write_text(json.dumps({"schema": 1, "ok": found}))


@pytest.mark.sshd
def test_each_box_gets_a_line_whatever_is_wrong_with_the_others(sshd):
    good, old, new, changed, silent = (
        sshd(name, known=name != "new") for name in ("good", "old", "new", "changed", "silent")
    )
    for server in (good, silent):
        put_overview(server)
    changed.run_sshd("B")
    with old.desk().open("old") as box:
        box.call("facts")  # the kit is there, a keeper is not: our program answers
    assert fab("status", "--hosts", "good,silent", "--json").returncode == 0
    silent.freeze_listener()
    try:
        done = fab("status", "--deadline", "4", "--json")
    finally:
        silent.thaw_listener()
    lines = {each["box"]: each for each in json.loads(done.stdout)["results"]}
    assert [lines[name]["answered"] for name in ("good", "old", "new", "changed", "silent")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert lines["good"]["runs"][0]["progress"]["step"] == 1200
    assert lines["old"]["runs"] == [] and not lines["old"]["keeper"]["armed"]
    assert lines["new"]["fault"] == "unknown host key"
    assert lines["changed"]["fault"] == "THE HOST KEY HAS CHANGED"
    assert lines["silent"]["fault"] == "no answer within 4 s"
    assert lines["silent"]["runs"][0]["progress"]["step"] == 1200  # its last words
    assert "runs" not in lines["new"]  # nothing is known
    assert last_copy("silent", "overview.json") is not None


@pytest.mark.sshd
def test_a_box_without_the_kit_is_told_from_a_dead_one(sshd):
    sshd("fresh"), sshd("other")
    lines = json.loads(fab("status", "--json").stdout)["results"]
    assert {each["fault"] for each in lines} == {"the kit is not on it yet"}


@pytest.mark.sshd
def test_many_boxes_are_told_of_in_the_form_of_one(sshd):
    server, _ = sshd("box"), sshd("other")
    put_run(server.data / "runs" / RUN["id"])
    with server.desk().open("box") as box:
        box.call("facts")
    (one,) = json.loads(fab("status", "--host", "box", "--json").stdout)["results"]
    many = json.loads(fab("status", "--hosts", "box,other", "--json").stdout)["results"]
    assert set(one) == set(many[0]) and set(one["keeper"]) == set(many[0]["keeper"])
    for key in ("box", "answered", "fault", "runs", "alive", "waiting", "hours"):
        assert one[key] == many[0][key]
    assert one["runs"][0]["progress"]["step"] == 7


@pytest.mark.parametrize(
    "states, meant",
    [
        ([], None),
        (["running", "queued", "finished"], 0),
        (["queued", "finished"], 0),
        (["finished", "failed"], 1),
        (["running", "running"], 1),
    ],
)
def test_the_line_is_that_of_the_run_that_matters(states, meant):
    runs = [{"id": i, "mine": True, "state": {"state": each}} for i, each in enumerate(states)]
    assert (shown({"runs": runs}) or {"id": None})["id"] == meant


def test_settings_of_the_user_come_before_our_key_exchange(tmp_path):
    slow = ["sntrup761x25519-sha512@openssh.com", "curve25519-sha256", "ecdh-sha2-nistp256"]
    assert quick_exchange(slow) == slow[::-1]
    assert quick_exchange(["mlkem768x25519-sha256", *slow]) == []  # nothing to mend
    assert quick_exchange([]) == []
    own = tmp_path / "their [own] config"
    own.write_text("Host picky\n  KexAlgorithms curve25519-sha256\n  Port 2222\n")
    box = asked("picky", "", "", 0, str(own), b"")
    for name, first in (("picky", "curve25519-sha256"), ("easy", "ecdh-sha2-nistp256")):
        (one,) = with_quick_exchange([box], tmp_path)
        done = subprocess.run(
            ["ssh", "-G", *one.options, "--", name], capture_output=True, text=True, check=True
        )
        kinds = next(line for line in done.stdout.splitlines() if line.startswith("kexalgorithms"))
        assert kinds.split()[1].split(",")[0] == first
        assert ("port 2222" in done.stdout) == (name == "picky")


@pytest.mark.sshd
def test_an_old_overview_is_not_taken_for_news(sshd):
    server, _ = sshd("box"), sshd("other")
    put_overview(server)
    past = time.time() - 600
    os.utime(server.home / ".gpubox" / "overview.json", (past, past))
    with server.desk().open("box") as box:
        box.call("facts")
    lines = json.loads(fab("status", "--json").stdout)["results"]
    assert lines[0]["answered"] and lines[0]["runs"] == []


@pytest.mark.sshd
def test_watch_draws_again_until_ctrl_c(sshd):
    server = sshd("box")
    put_overview(server)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [FAB, "status", "--watch", "--every", "0.5"],
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "COLUMNS": "160", "TERM": "xterm"},
    )
    os.close(slave)

    def see(words, seconds=30):
        shown, deadline = b"", time.monotonic() + seconds
        while words not in shown and time.monotonic() < deadline:
            shown += os.read(master, 65536)
        return words in shown

    assert see(b"1,200 / 20,000")
    put_overview(server, {**FOUND, "runs": [{**RUN, "progress": {**PROGRESS, "step": 1300}}]})
    assert see(b"1,300 / 20,000")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) in (0, 130)
