"""fab idle, hold, cost, watch, down and up over a real sshd, with commands that really end it."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from deploy.effects import commands
from deploy.errors import StopFailed, UsageError
from deploy.verbs import down as down_verb
from deploy.verbs import watch as watch_verb
from deploy.verbs.cost import cost
from deploy.verbs.down import down
from deploy.verbs.hold import hold
from deploy.verbs.idle import idle, read_overrides
from deploy.verbs.up import up
from deploy.verbs.watch import watch
from tests.keeper.local import Webhook

pytestmark = [pytest.mark.sshd, pytest.mark.slow]

IDLE = 'idle = {poll = "1s", remind_after = "10m", stop_after = "30m", cpu_below = 1e9, net_below = 1e9'
NO_ACTION: dict = {}


class Reached:
    """A box over sshd whose keeper is ended with the test."""

    def __init__(self, start):
        self.start = start
        self.server = None

    def open(self, more="", idle=IDLE, top=""):
        stop = self.script("off", "")
        start = self.script("on", "")
        lines = f"{idle}}}\nprice_per_hour = 2.0\n{more}"
        lines = lines.replace("OFF", str(stop)).replace("ON", str(start))
        self.server = self.start(toml=lines)
        if top:
            self.server.boxes.toml.write_text(top + "\n" + self.server.boxes.toml.read_text())
        self.script("off", f"kill {self.server._process.pid}")
        sshd, config = self.server._program, self.server.folder / "sshd_config"
        self.script("on", f"{sshd} -f {config} -o PidFile={self.server.folder}/pid")
        return self

    def script(self, name, body):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\necho {name} >>{self.folder}/calls\n{body}\n")
        path.chmod(0o755)
        return path

    def calls(self):
        path = self.folder / "calls"
        return path.read_text().split() if path.exists() else []

    def desk(self, **options):
        return self.server.desk(**options)

    def keeper(self):
        return self.server.home / ".gpubox" / "keeper"

    def end(self):
        if self.server is None:
            return
        (self.keeper()).mkdir(parents=True, exist_ok=True)
        (self.keeper() / "disarmed").touch()
        status = self.keeper() / "status.json"
        if status.exists():
            with_pid = json.loads(status.read_text())["pid"]
            for each in (self.keeper() / "rule.json", self.keeper() / ".rule-copy.json"):
                each.unlink(missing_ok=True)
            kill(with_pid)
        pid = self.server.folder / "pid"
        if pid.exists():
            kill(int(pid.read_text()))


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@pytest.fixture
def reached(sshd, tmp_path):
    made = Reached(sshd)
    made.folder = tmp_path
    yield made
    made.end()


def test_idle_shows_changes_and_resets_the_rule(reached):
    box = reached.open()
    unarmed = idle(box.desk(), NO_ACTION, {})[0]
    assert not unarmed["armed"] and "NOT armed" in unarmed["line"]
    changed = idle(box.desk(), NO_ACTION, {"stop_after": "45m", "max_hours": "1000"})[0]
    rule, origins = changed["rule"]["rule"], changed["rule"]["origins"]
    assert (rule["stop_after"], rule["remind_after"], rule["max_hours"]) == (2700, 900, 1000)
    assert origins["stop_after"] == "fab idle" and origins["poll"] == "boxes.box.idle"
    assert origins["max_unknown"] == "default"
    off = idle(box.desk(), NO_ACTION, {"stop_after": "off"})[0]
    assert not off["rule"]["rule"]["enabled"] and "OFF (idle rule), caps only remind" in off["line"]
    again = idle(box.desk(), {"reset": True}, {})[0]
    assert again["rule"]["rule"]["stop_after"] == 1800 and read_overrides("box") == {}
    gone = idle(box.desk(), {"disarm": True}, {})[0]
    assert not gone["armed"]
    with pytest.raises(UsageError):
        idle(box.desk(), NO_ACTION, {"stop_after": "90"})


def test_a_dry_run_arms_nothing(reached):
    box = reached.open()
    idle(box.desk(dry_run=True), {"arm": True}, {})
    assert not idle(box.desk(), NO_ACTION, {})[0]["armed"]


def test_hold_and_cost(reached):
    box = reached.open()
    idle(box.desk(), {"arm": True}, {})
    held = hold(box.desk(), "2h,waiting,for,labels", "", False)[0]
    assert held["seconds"] == 7200 and held["why"] == "waiting for labels"
    deadline = time.monotonic() + 20
    while idle(box.desk(), NO_ACTION, {})[0]["status"]["decision"]["cause"] != "active":
        assert time.monotonic() < deadline
    hold(box.desk(), "1h", "", True)
    sum_ = cost(box.desk())[0]["total"]
    assert sum_["on"] > 0 and sum_["cost"] == pytest.approx(sum_["on"] / 3600 * 2)
    box.server.stop()
    copy = cost(box.desk())[0]
    assert copy["total"]["on"] == sum_["on"] and "last copy" in copy["note"]


def test_a_hold_where_nothing_stops_the_box_is_a_warning(reached, capsys):
    box = reached.open()
    assert not hold(box.desk(), "2h", "", False)[0]["armed"]
    assert "held for 2 h, but no keeper is armed" in capsys.readouterr().err
    idle(box.desk(), {"arm": True}, {})
    assert hold(box.desk(), "2h", "", False)[0]["armed"]
    assert "no keeper is armed" not in capsys.readouterr().err


def test_down_stops_and_up_starts_a_box_and_both_make_sure(reached):
    box = reached.open('stop = {command = ["OFF"], start = ["ON"]}')
    idle(box.desk(), {"arm": True}, {})
    with pytest.raises(StopFailed, match="nobody said yes"):
        down(box.desk(), False)
    assert down(box.desk(), True)[0]["off"]
    assert box.calls() == ["off"]
    on = up(box.desk())[0]
    assert on["on"] and box.calls() == ["off", "on"] and "auto-stop: armed" in on["line"]


def test_a_stop_that_is_accepted_while_ssh_answers_on_is_an_error(reached, monkeypatch):
    monkeypatch.setattr(down_verb, "OFF_SECONDS", 5.0)
    box = reached.open('stop = {command = ["true"]}')
    with pytest.raises(StopFailed, match="SSH still answers"):
        down(box.desk(), True)


def test_a_stop_that_fails_is_an_error_and_an_unknown_box_is_not_guessed_at(reached):
    box = reached.open('stop = {command = ["false"]}')
    with pytest.raises(StopFailed, match="false ended with 1"):
        down(box.desk(), True)


def test_a_box_that_nobody_knows_how_to_stop_says_so(reached):
    box = reached.open()
    for sure in (True, False):  # nobody is asked for what can't be done
        with pytest.raises(StopFailed, match="not stopped from inside"):
            down(box.desk(), sure)


def test_watch_carries_out_the_stop_that_the_box_can_not(reached, monkeypatch):
    told = []
    monkeypatch.setattr(watch_verb, "desktop_notice", lambda title, text: told.append(title))
    quick = IDLE.replace("10m", "1s").replace("30m", "4s")
    box = reached.open('stop = {from_laptop = ["OFF"]}', idle=quick)
    idle(box.desk(), {"arm": True}, {})
    deadline = time.monotonic() + 60
    while not (seen := watch(box.desk(), 1.0, True)[0])["stopped"]:
        assert time.monotonic() < deadline, seen
        time.sleep(0.5)
    assert box.calls() == ["off"]
    assert told[-1] == "gpubox: box"
    assert "error" in watch(box.desk(), 1.0, True)[0]


def test_watch_tells_the_desktop_once_a_level(reached, monkeypatch):
    told = []
    monkeypatch.setattr(watch_verb, "desktop_notice", lambda title, text: told.append(text))
    box = reached.open(idle=IDLE.replace("10m", "2s"))
    levels: dict = {}
    idle(box.desk(), {"arm": True}, {})
    import queue

    deadline = time.monotonic() + 30
    while not told:
        watch_verb.look(box.desk(), "box", levels, queue.Queue(), True)
        assert time.monotonic() < deadline
        time.sleep(0.5)
    watch_verb.look(box.desk(), "box", levels, queue.Queue(), True)
    assert len(told) == 1 and told[0].endswith("Enter keeps it for an hour")
    snooze: queue.Queue = queue.Queue()
    snooze.put("\n")
    watch_verb.look(box.desk(), "box", levels, snooze, True)
    assert idle(box.desk(), NO_ACTION, {})[0]["hold"]["left"] > 3500


def test_any_channel_that_apprise_knows(reached, tmp_path):
    hook = Webhook()
    address = tmp_path / "channel"
    address.write_text(hook.url().replace("http://", "json://") + "\n")
    top = f'[notify]\nteam = "{address}"'
    box = reached.open(idle=IDLE + ', notify = ["team"]')
    toml = box.server.boxes.toml
    toml.write_text(toml.read_text() + top + "\n")
    idle(box.desk(), {"arm": True}, {})
    idle(box.desk(), {"try_notice": True}, {})
    assert any("gpubox: test" in json.dumps(each) for each in hook.got)
    everywhere = subprocess.run(
        ["grep", "-rl", "s3cret", str(box.server.home)], capture_output=True
    )
    files = [Path(line).name for line in everywhere.stdout.decode().split()]
    assert files == ["channels.json"]
    assert (box.keeper() / "channels.json").stat().st_mode & 0o777 == 0o600
    hook.close()


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_words_on_the_desktop_are_arguments_and_never_a_script(platform):
    hostile = '"; rm -rf / #'
    command = commands.notice_command(platform, "title", hostile)
    assert any(hostile in word for word in command)
    assert all(hostile not in word for word in command[:-1])
