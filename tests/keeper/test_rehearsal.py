"""Rehearsals, marks, environments, channels: the box's side of arming, piece by piece."""

import http.server
import json
import os
import threading
from pathlib import Path

import pytest

from deploy.onbox import marks as marks_of_the_box
from deploy.onbox import post, rehearsal
from deploy.onbox.child import TookTooLong, in_child, run_program
from deploy.onbox.environment import exports, fill_in, known_environment, names_in
from deploy.onbox.life import on_network_disk, uptime
from deploy.onbox.marks import answers, ask_all, marks
from deploy.onbox.notify import write_to_terminals
from deploy.onbox.refusal import Refusal
from deploy.onbox.rehearsal import is_power_off, rehearse
from deploy.onbox.starts import allow_starts, forbid_starts, refuse_while_stopping, stopping
from deploy.onbox.stopping_box import newest_whole, try_call, try_to_stop
from deploy.plan.config import Box
from deploy.plan.keeper import stop_plan
from deploy.plan.providers import choose, questions
from tests.keeper.local import Webhook

NOTHING = {"env": [], "files": [], "dmi": {}, "metadata": [], "root": True, "systemd": True}


def inside(**stop):
    return {"how": "inside", "commands": [], "calls": [], "checks": [], **stop}


def test_one_way_that_stands_is_enough(tmp_path):
    assert rehearse(inside(commands=[["/nowhere"], ["true"]])) == []
    assert rehearse(inside(commands=[["/nowhere"]])) == ["/nowhere: not there"]
    assert rehearse(inside()) == ["no stop command"]
    assert rehearse({"how": "report"}) == rehearse({"how": "laptop"}) == []


def test_a_script_given_to_bash_is_looked_at_too(tmp_path):
    script = tmp_path / "off"
    script.write_bytes(b"exit\r\n")
    assert "CRLF" in rehearse(inside(commands=[["bash", str(script)]]))[0]
    script.write_bytes(b"exit 0\n")  # without a first line of that kind, as on AutoDL
    assert rehearse(inside(commands=[["bash", str(script)]])) == []


@pytest.mark.parametrize(
    "words",
    [["shutdown", "-h"], ["sudo", "-n", "poweroff"], ["systemctl", "poweroff"], ["/sbin/halt"]],
)
def test_a_power_off_inside_a_container_is_refused_unless_it_ends_the_bill(monkeypatch, words):
    monkeypatch.setattr(rehearsal, "in_container", lambda: True)
    assert is_power_off(words)
    assert "not the bill" in rehearse(inside(commands=[words]))[0]
    allowed = rehearse(inside(commands=[words], power_off_ends_bill=True))
    assert not any("container" in line for line in allowed)


def test_what_the_environment_lacks_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("RUNPOD_POD_ID", raising=False)
    plan = stop_plan(Box(), choose("runpod", NOTHING, ""), NOTHING)
    problems = rehearse(plan)
    assert "RUNPOD_POD_ID is not in the environment of this box" in problems
    assert "RUNPOD_API_KEY is not in the environment of this box" in problems
    key = tmp_path / "key"
    call = {
        "method": "POST",
        "url": "https://x/",
        "headers": {"A": "${file:" + str(key) + "}"},
        "body": "",
    }
    assert "can't be read" in rehearse(inside(calls=[call]))[0]
    key.write_text("s3cret\n")
    key.chmod(0o644)
    assert "others may read it" in rehearse(inside(calls=[call]))[0]


def test_a_shutdown_behaviour_of_terminate_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(rehearsal, "in_container", lambda: False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "systemctl").write_text("#!/bin/sh\n")
    (tmp_path / "systemctl").chmod(0o755)

    def aws(answer):
        (tmp_path / "aws").write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "aws").chmod(0o755)

    guessed = choose(
        "auto", {**NOTHING, "dmi": {"sys_vendor": "Amazon EC2"}, "metadata": ["aws"]}, ""
    )
    told = choose("aws", NOTHING, "")
    aws('echo "INSTANCEINITIATEDSHUTDOWNBEHAVIOR terminate"')
    for choice in (guessed, told):
        assert "terminate" in rehearse(stop_plan(Box(), choice, NOTHING))[0]
    aws('echo "INSTANCEINITIATEDSHUTDOWNBEHAVIOR stop"')
    assert rehearse(stop_plan(Box(), guessed, NOTHING)) == []
    aws("exit 255")
    assert 'provider = "aws"' in rehearse(stop_plan(Box(), guessed, NOTHING))[0]
    assert rehearse(stop_plan(Box(), told, NOTHING)) == []


class Provider(http.server.BaseHTTPRequestHandler):
    """A provider's API: GET shows an instance to whoever has the key, POST stops it."""

    seen: list = []

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        Provider.seen.append((self.command, self.path, body))
        self.send_response(200 if self.headers["Authorization"] == "Bearer k3y" else 401)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def provider(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Provider.seen.clear()
    url = f"http://127.0.0.1:{server.server_port}/pods/${{POD}}"
    monkeypatch.setenv("POD", "p1")
    yield {
        "method": "POST",
        "url": url + "/stop",
        "headers": {"Authorization": "Bearer ${KEY}"},
        "body": '{"id": "${POD}"}',
        "rehearse": url,
    }
    server.shutdown()


def test_a_call_is_rehearsed_by_looking_and_done_by_stopping(provider, monkeypatch):
    monkeypatch.setenv("KEY", "wrong")
    assert "401" in rehearse(inside(calls=[provider]))[0]
    monkeypatch.setenv("KEY", "k3y")
    assert rehearse(inside(calls=[provider])) == []
    assert [each[0] for each in Provider.seen] == ["GET", "GET"]
    tried = try_to_stop(inside(calls=[provider]))
    assert tried.accepted and Provider.seen[-1] == ("POST", "/pods/p1/stop", '{"id": "p1"}')
    monkeypatch.setenv("KEY", "wrong")
    refused = try_call(provider, known_environment())
    assert not refused.accepted and "401" in refused.text and "wrong" not in refused.text


def test_the_providers_environment_is_found_where_ssh_does_not_bring_it(tmp_path):
    init, file = tmp_path / "environ", tmp_path / "help"
    init.write_bytes(b"RUNPOD_POD_ID=abc\0EMPTY=\0")
    file.write_text('export AutoDLRegion="west 1"\nA=1\nrm -rf /\n# B=2\nBAD="\n')
    found = known_environment(str(init), (str(file), "/nowhere"))
    assert (found["RUNPOD_POD_ID"], found["AutoDLRegion"], found["A"]) == ("abc", "west 1", "1")
    assert exports("B C=1") == {} and "BAD" not in found
    assert fill_in("x-${A}-${NOT}-$A", found) == "x-1--$A"
    assert names_in("${A} ${file:~/k}") == ["A", "file:~/k"]


def test_marks_are_looked_for_and_the_metadata_addresses_asked_at_once(monkeypatch, tmp_path):
    asked = {**questions(), "files": [str(tmp_path), "/nowhere"], "metadata": {}}
    monkeypatch.setenv("AutoDLRegion", "west")
    found = marks(asked, None)
    assert found["env"] == ["AutoDLRegion"] and found["files"] == [str(tmp_path)]
    assert not found["container"] or found["dmi"] == {}
    monkeypatch.setattr(marks_of_the_box, "answers", lambda host, **_: host == "b")
    assert ask_all({name: {"host": name, "path": "/"} for name in "abc"}) == ["b"]


def test_a_metadata_address_that_nobody_answers_is_no_mark():
    assert not answers("127.0.0.1", "/latest/", "x")


def test_no_run_starts_while_the_box_is_being_stopped(own_home):
    assert stopping() == ""
    forbid_starts("idle 30 min", 60.0)
    with pytest.raises(Refusal, match="idle 30 min"):
        refuse_while_stopping()
    allow_starts()
    refuse_while_stopping()
    forbid_starts("long ago", 0.0)
    refuse_while_stopping()


def test_the_newest_whole_checkpoint_is_told_from_damaged_ones(tmp_path):
    import hashlib

    for step in (1, 2, 3):
        folder = tmp_path / f"step_{step:08d}"
        folder.mkdir()
        (folder / "weights").write_bytes(b"w" * step)
        digest = hashlib.sha256(b"w" * step).hexdigest()
        (folder / "SHA256SUMS").write_text(f"{digest}  weights\n")
    (tmp_path / "step_00000003" / "weights").write_bytes(b"bad")
    (tmp_path / "step_00000004").mkdir()
    assert newest_whole(str(tmp_path)) == ("step_00000002", 2)
    assert newest_whole(str(tmp_path / "none")) == ("", 0)


def test_work_that_hangs_or_fails_in_a_child():
    assert in_child(lambda: {"a": [1, 2]}, 5) == {"a": [1, 2]}
    assert len(in_child(lambda: "x" * 1_000_000, 5)) == 1_000_000
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        in_child(lambda: 1 / 0, 5)
    with pytest.raises(TookTooLong):
        in_child(lambda: threading.Event().wait(60), 0.3)
    with pytest.raises(RuntimeError, match="died"):
        in_child(lambda: os._exit(1), 5)


def test_a_program_that_hangs_is_killed_with_all_that_it_started():
    ended = run_program(["sh", "-c", "echo first; sleep 600 & echo $!; wait"], 0.5)
    assert ended.code is None and ended.text.startswith("first")
    grandchild = int(ended.text.split()[1])
    stat = Path(f"/proc/{grandchild}/stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    assert run_program(["sh", "-c", "exit 3"], 5).code == 3
    assert run_program(["/nowhere"], 5).code == 127


@pytest.mark.parametrize(
    ("host", "shape"),
    [
        ("hooks.slack.com", {"text": "T\nB"}),
        ("oapi.dingtalk.com", {"msgtype": "text", "text": {"content": "T\nB"}}),
        ("qyapi.weixin.qq.com", {"msgtype": "text", "text": {"content": "T\nB"}}),
        ("open.feishu.cn", {"msg_type": "text", "content": {"text": "T\nB"}}),
        ("discord.com", {"content": "T\nB"}),
    ],
)
def test_each_chat_service_gets_the_form_that_it_wants(monkeypatch, host, shape):
    sent = []
    monkeypatch.setattr(post, "send", lambda *request: sent.append(request) or (200, b""))
    post.post({"url": f"https://{host}/hook/s3cret", "title": "T", "text": "B"}, None)
    assert json.loads(sent[0][3]) == shape


def test_a_webhook_that_fails_is_said_without_its_address():
    for answer in (500, "redirect"):
        hook = Webhook(answer)
        with pytest.raises(Refusal) as no:
            post.post({"url": hook.url(), "title": "T", "text": "B"}, None)
        assert "s3cret" not in no.value.message and "HTTP" in no.value.message
        assert len(hook.got) == 1  # a redirect is not followed
        hook.close()


def test_words_for_a_terminal_can_not_drive_it():
    ours, theirs = os.openpty()
    try:
        assert write_to_terminals("stop\x1b]0;evil\x07\nnow") >= 1
        seen = os.read(ours, 4096).decode()
        assert "stop]0;evil" in seen and "\x1b" not in seen and "now" in seen
    finally:
        os.close(ours), os.close(theirs)


def test_a_home_on_a_network_disk_is_told(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text("none / overlay rw 0 0\nsrv:/h /home nfs4 rw 0 0\nnone /home/a ext4 rw 0 0\n")
    assert on_network_disk("/home/b/.gpubox", str(mounts))
    assert not on_network_disk("/home/a/x", str(mounts))
    assert not on_network_disk("/homes", str(mounts))


def test_the_box_has_not_been_on_longer_than_its_host():
    with open("/proc/uptime") as file:
        assert 0 < uptime() <= float(file.read().split()[0]) + 1
