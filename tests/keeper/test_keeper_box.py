"""For real: a machine with init that is reminded, saves its run, switches itself off, and resumes."""

import json
import os
import shutil
import signal
import subprocess
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.effects.program import packed_program
from deploy.plan.config import Box, IdleRule, StopRule
from deploy.plan.keeper import arm_request, stop_plan
from deploy.plan.providers import choose, questions
from tests.box.box import docker
from tests.keeper.local import DEAF
from tests.runs.conftest import PROGRAM

pytestmark = [pytest.mark.engine, pytest.mark.box, pytest.mark.slow]

RULE = IdleRule(remind_after=4.0, stop_after=12.0, stalled_after=4.0, poll=1.0, **DEAF)
PATIENT = IdleRule(remind_after=600.0, stop_after=1800.0, poll=1.0, **DEAF)
# Listens in the box itself and notes what it gets; MODE "hang" never answers.
HOOK = """
import http.server, json, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        open("/root/hook.log", "a").write(body["title"] + "\\n")
        if sys.argv[1] == "hang": time.sleep(3600)
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8999), Handler).serve_forever()
"""
HANGS = """
at = newest()
publish(at + 1)
progress(at + 1, 3)
if at == 0:
    try:
        time.sleep(3600)            # makes no more steps: stalled
    except Ending:
        publish(2)
        sys.exit(75)
"""
SAVES_AT_THE_END = """
publish(1)
progress(1, 3)
try:
    time.sleep(3600)
except Ending:
    publish(2, size=10**6)  # more than the little that is kept in reserve
    sys.exit(75)
"""
WORKS = """
try:
    for step in range(newest() + 1, 100000):
        progress(step, 100000)
        if step % 20 == 1:
            publish(step, keep=3)
        time.sleep(0.1)
except Ending:
    publish(step)
    sys.exit(75)
"""


class Kept:
    """A box with a keeper, reached by SSH as a laptop would."""

    def __init__(self, box, tmp_path):
        self.box, self.tmp_path, self.number = box, tmp_path, 0

    def call(self, verb, **request):
        with self.box.desk().open(self.box.name) as agent:
            return agent.call(verb, **request)

    def arm(self, rule=RULE, command=(), provider="vm", hook=False, stop=None, mode="auto", **more):
        found = self.call("marks", **questions())
        settings = Box(idle=rule, stop=StopRule(command=tuple(command)), price_per_hour=2.0)
        choice = choose(provider, found, self.box.host)
        plan = {**stop_plan(settings, choice, found), **(stop or {})}
        request = arm_request(self.box.name, settings, rule, {}, plan, choice, "EUR", 5.0)
        channels = [{"name": "hook", "url": "http://127.0.0.1:8999/"}] if hook else []
        return self.call(
            "arm", **{**request, "asked": "x", "mode": mode, "channels": channels, **more}
        )

    def listen(self, mode="answer"):
        self.box.run("sh", "-c", "cat >/root/hook.py", input=HOOK)
        self.box.run("systemd-run", "--quiet", "python3", "/root/hook.py", mode)
        self.box.run("sh", "-c", "until ss -ltn | grep -q :8999; do sleep 0.1; done")

    def launch(self, program, **more):
        self.number += 1
        code = self.tmp_path / f"code-{self.number}"
        code.mkdir()
        (code / "train.py").write_text(PROGRAM + textwrap.dedent(program))
        request = {
            "id": f"20261130-0930-kept-{self.number:04x}",
            "code": packed_program(None, code),
            "command": ["python", "train.py"],
            "runner": "process",
            "python": "/usr/bin/python3",
            "device": "cpu",
            "gpus": "all",
            "stop_grace": 5,
            "shm_size": "64mb",
            "wait": True,
        }
        return self.call("launch", **{**request, **more})["id"]

    def state(self, run):
        text = self.box.run("cat", f"/data/runs/{run}/state.json").stdout
        return json.loads(text)

    def steps(self, run):
        names = self.box.run("ls", f"/data/runs/{run}/output/checkpoints").stdout.split()
        return [int(name[5:]) for name in names if name.startswith("step_")]

    def until(self, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.3)
        return found

    def log(self):
        path = "~/.gpubox/keeper/log"
        return self.box.run("sh", "-c", f"cat {path}", user=self.box.user, check=False).stdout

    def idle(self):
        return self.call("idle")

    def saved_log(self):
        """The keeper's log of a box that is off."""
        home = "/root" if self.box.user == "root" else f"/home/{self.box.user}"
        target = self.tmp_path / "log"
        docker("cp", f"{self.box.container}:{home}/.gpubox/keeper/log", str(target))
        return target.read_text()


@pytest.fixture
def kept(boxes, tmp_path):
    return lambda kind="bare", **options: Kept(boxes.start(kind, **options), tmp_path)


def test_it_reminds_saves_switches_off_and_resumes_at_the_next_start(kept):
    box = kept()
    box.listen()
    terminal = subprocess.Popen(
        ["ssh", "-tt", "-F", str(box.box.ssh_config), "-o", "BatchMode=yes", box.box.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    run = box.launch(HANGS)
    armed = box.arm(hook=True)
    assert armed["armed"] and armed["mode"] == "system" and armed["after_reboot"]
    assert box.box.wait_off(90) == 130
    seen = terminal.communicate(timeout=30)[0].decode(errors="replace")
    log = box.saved_log()
    assert seen.count("stops in") == 3 and "last call" in seen
    assert "is being stopped now" in seen and "fab hold" in seen
    assert f"{run}: step_00000002 is whole and NOT home yet" in log
    assert "stalled: " + run in log
    box.box.power_on()
    hook = box.box.run("cat", "/root/hook.log").stdout
    assert hook.count("stops in") == 3 and "is being stopped now" in hook
    assert box.until(box.idle)["armed"]
    box.until(lambda: box.state(run)["state"] == "finished")
    assert box.steps(run) == [1, 2, 3]
    assert box.idle()["status"]["decision"]["idle_for"] < 60


def test_a_lifetime_ends_a_working_box_and_its_run_goes_on_after_the_next_start(kept):
    box = kept()
    run = box.launch(WORKS)
    box.arm(replace(PATIENT, max_hours=shortly(box, 12)))
    assert box.box.wait_off(90) == 130
    assert "lifetime" in box.saved_log()
    box.box.power_on()
    saved = max(box.steps(run))
    box.until(lambda: box.state(run)["state"] == "running")
    box.until(lambda: max(box.steps(run)) > saved)
    assert box.idle()["status"]["signals"]["runs"][0] == "active"


def shortly(box, seconds):
    """`max_hours` that ends the lifetime of the box in so many seconds."""
    up = float(box.box.run("cut", "-d", " ", "-f", "1", "/proc/uptime").stdout)
    began = int(box.box.run("cut", "-d", " ", "-f", "22", "/proc/1/stat").stdout) / 100
    return (up - began + seconds) / 3600


def test_a_disk_that_is_full_at_the_stop_is_said_and_does_not_keep_the_box_on(kept):
    box = kept(more=["--tmpfs", "/data:size=64m,mode=1777"], disks=False)
    run = box.launch(SAVES_AT_THE_END)
    box.until(lambda: box.steps(run))
    fill = "dd if=/dev/zero of=/data/fill bs=64k; df /data"
    assert "100%" in box.box.run("sh", "-c", fill).stdout
    box.arm(replace(PATIENT, max_hours=shortly(box, 12)))
    assert box.box.wait_off(120) == 130
    log = box.saved_log()
    said = f"{run}: interrupted by the shutdown at the end of its lifetime, with the disk"
    assert said in log, log
    assert f"{run}: step_00000001 is whole and NOT home yet" in log
    assert "To keep it: fab idle --max-hours MORE" in log  # a hold would not


def test_a_webhook_that_hangs_a_killed_keeper_and_a_deleted_rule_do_not_save_it(kept):
    box = kept()
    box.listen("hang")
    box.arm(hook=True)
    pid = box.idle()["status"]["pid"]
    box.box.run("kill", "-9", str(pid))
    box.until(lambda: (box.idle()["status"] or {}).get("pid") not in (None, pid))
    box.box.run("rm", "/root/.gpubox/keeper/rule.json")
    box.until(lambda: "rule was deleted" in box.log())
    assert box.box.wait_off(90) == 130


def test_a_stop_command_that_fails_then_hangs_then_works(kept):
    box = kept()
    script = """#!/bin/sh
    echo x >>/root/tries
    case $(wc -l </root/tries) in 1) echo no quota; exit 1;; 2) sleep 9999;; esac
    exec systemctl poweroff
    """
    box.box.run("sh", "-c", "cat >/root/stop; chmod 755 /root/stop", input=script)
    box.arm(command=["/root/stop"], stop={"seconds": 2.0, "pauses": [1.0]})
    assert box.box.wait_off(90) == 130
    log = box.saved_log()
    assert "ended with 1: no quota" in log and "did not end" in log
    assert log.count("could NOT be stopped") == 2


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not shutil.which("cc"):
        pytest.skip("no C compiler (apt-get install gcc)")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = str(Path(__file__).parents[1] / "fakes" / "libnvidia-ml.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), source], check=True)
    return path


def gpu_says(box, *lines):
    box.box.run("sh", "-c", "cat >/tmp/fake-nvml", input="\n".join(lines) + "\n")


def test_a_driver_that_errs_or_hangs_stops_nothing_and_is_said(kept, library):
    box = kept()
    docker("cp", str(library), f"{box.box.container}:/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    box.box.run("sh", "-c", "ldconfig; touch /dev/nvidiactl")
    gpu_says(box, "util 0", "error 999")
    box.arm()
    time.sleep(16)
    status = box.idle()["status"]
    assert (
        status["decision"]["cause"] == "unknown" and "Unknown Error" in status["signals"]["gpu"][1]
    )
    gpu_says(box, "util 95")
    box.until(lambda: box.idle()["status"]["signals"]["gpu"] == ["active", "95 %"])
    gpu_says(box, "util 0", "hang 3600")
    box.until(lambda: "does not answer" in box.idle()["status"]["signals"]["gpu"][1])
    time.sleep(13)
    assert box.box.is_on()
    assert box.idle()["status"]["decision"]["cause"] == "unknown"
    gpu_says(box, "util 0")
    assert box.box.wait_off(150) == 130


def test_with_a_driver_that_never_answers_patience_ends_too(kept, library):
    box = kept()
    docker("cp", str(library), f"{box.box.container}:/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    box.box.run("sh", "-c", "ldconfig; touch /dev/nvidiactl")
    gpu_says(box, "error 999")
    box.arm(replace(RULE, max_unknown=20.0))
    assert box.box.wait_off(90) == 130
    assert "unknown: gpu:" in box.saved_log()


def test_a_dead_engine_does_not_keep_the_box_on(kept, cpu_image):
    box = kept("engine")
    box.box.load(cpu_image)
    image = box.box.run("docker", "images", "--no-trunc", "--quiet", cpu_image).stdout.strip()
    compose = (Path(__file__).parents[2] / "compose.yaml").read_text()
    run = box.launch(WORKS, runner="docker", image=image, compose=compose, python="")
    assert box.state(run)["state"] == "running"
    box.box.run(
        "sh", "-c", "systemctl stop docker.socket; pkill -STOP dockerd; pkill -STOP containerd"
    )
    box.arm(replace(PATIENT, max_hours=shortly(box, 8)))
    assert box.box.wait_off(300) == 130


def test_a_user_with_sudo_arms_a_unit_of_the_system_that_may_power_off(kept):
    box = kept(user="dev")
    armed = box.arm()
    assert armed["mode"] == "system" and armed["after_reboot"]
    owner = box.box.run("ps", "-o", "user=", "-p", str(box.idle()["status"]["pid"])).stdout
    assert owner.strip() == "dev"
    assert box.box.wait_off(90) == 130


def test_a_user_without_sudo_is_refused_a_power_off_and_its_keeper_outlives_the_session(kept):
    box = kept(user="dev")
    box.box.run("rm", "/etc/sudoers.d/dev")
    from deploy.errors import StopFailed

    with pytest.raises(StopFailed, match="sudo does not allow"):
        box.arm()
    assert not box.idle()["armed"]
    armed = box.arm(force=True)
    assert armed["mode"] == "detached" and armed["armed"] and not armed["after_reboot"]
    box.until(lambda: "could NOT be stopped" in box.log())
    assert box.box.is_on()


def test_a_user_who_lingers_gets_a_unit_of_its_own_that_starts_at_boot(kept):
    box = kept(user="dev")
    box.box.run("rm", "/etc/sudoers.d/dev")
    box.box.run("loginctl", "enable-linger", "dev")
    armed = box.arm(PATIENT, force=True)
    assert armed["mode"] == "user" and armed["after_reboot"]
    box.box.power_off()
    box.box.power_on()
    box.until(lambda: box.idle()["armed"])


def test_a_box_that_is_a_bare_container_is_armed_by_a_small_supervisor(kept):
    box = kept("process")
    armed = box.arm(provider="auto")
    assert armed["mode"] == "detached" and not armed["after_reboot"]
    assert armed["stop"]["how"] == "report"  # nobody knows whose box it is
    box.until(lambda: "is ready to be stopped" in box.log())
    pid = box.idle()["status"]["pid"]
    box.box.run("kill", "-9", str(pid))
    box.until(lambda: (box.idle()["status"] or {}).get("pid") not in (None, pid))
    box.box.power_off()
    box.box.power_on()
    assert box.idle()["armed"]  # this very look has started it again


def test_the_laptop_killed_while_it_arms_leaves_a_box_that_is_armed_or_says_it_is_not(kept):
    box = kept()
    environment = {**os.environ, "PATH": os.environ["PATH"]}
    for pause in (0.3, 0.8, 1.5, 2.5):
        command = [shutil.which("fab") or ".venv/bin/fab", "idle", "--arm", "--force"]
        fab = subprocess.Popen(
            [*command, "--host", box.box.name],
            env=environment,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(pause)
        os.killpg(fab.pid, signal.SIGKILL)
        fab.wait()
        time.sleep(2)
        answer = box.idle()
        lives = box.box.run("pgrep", "-f", "onbox-.*keeper", check=False).returncode == 0
        assert answer["armed"] == lives, answer
