"""A real TensorBoard and a real notebook over a real sshd: what one sees, who can't, how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.effects import browser
from tests.views.venvs import venv_with

pytestmark = [pytest.mark.sshd, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
FAB = Path(sys.executable).parent / "fab"
PACKAGES = ("tensorboard==2.21.0", "setuptools<81", "jupyterlab==4.6.2")
EVENTS = """
import sys, time
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
for step in range(5):
    value = summary_pb2.Summary.Value(tag="loss", simple_value=1.0 / (step + 1))
    summary = summary_pb2.Summary(value=[value])
    writer.add_event(event_pb2.Event(step=step, wall_time=time.time(), summary=summary))
writer.close()
"""


@pytest.fixture(scope="module")
def python():
    return venv_with("views", *PACKAGES) / "bin/python"


@pytest.fixture
def box(sshd, python):
    """A box whose process runner uses a Python with TensorBoard and JupyterLab, and one run."""
    server = sshd(toml=f'runner = "process"\npython = "{python}"')
    run = server.data / "runs" / "20261130-0930-cnn-3f9a"
    (run / "output" / "tensorboard").mkdir(parents=True)
    about = {"schema": 1, "runner": "process", "device": "cpu", "python": str(python), "created": 1}
    (run / "run.json").write_text(json.dumps({**about, "id": run.name, "needs": ""}))
    subprocess.run([python, "-c", EVENTS, run / "output" / "tensorboard"], check=True)
    (server.input / "hello.txt").write_text("staged")
    server.run_folder = run
    return server


class Shown:
    """A `fab tensorboard` or `fab notebook` that is up."""

    def __init__(self, process, line):
        self.process, self.line = process, line
        self.url = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]

    @property
    def door(self):
        return Path(re.search(r"with the token in (\S+);", self.line)[1])

    @property
    def token(self):
        return re.search(r"token=([\w-]+)", self.door.read_text())[1]

    def get(self, path, token="", **request):
        headers = {"Authorization": f"token {token}"} if token else {}
        ask = urllib.request.Request(self.url + path, headers=headers, **request)
        try:
            with urllib.request.urlopen(ask, timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as no:
            return no.code, no.read()


@contextmanager
def fab(*words):
    process = subprocess.Popen(
        [FAB, *words, "--no-browser"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        line = process.stdout.readline()
        assert "127.0.0.1" in line, process.stderr.read()
        yield Shown(process, line)
    finally:
        process.kill()
        process.communicate()


def soon(what, seconds=15):
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.1)
    return what()


def servers_of(python):
    """Process ids that run one of our servers by this Python."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        names = (b"tensorboard.main", b"jupyterlab", b"jupyter")
        if words[0] == str(python).encode() and any(n in words for n in names):
            found.append(int(path.parent.name))
    return found


def where_it_lies(secret):
    """Every process whose arguments or environment hold the secret."""
    found = []
    for pid in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                if secret.encode() in (pid / name).read_bytes():
                    found.append(f"{pid.name}/{name}")
            except OSError:
                continue
    return found


def listening(port):
    """The addresses (hexadecimal) on which this machine listens at a port."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {
        f[1].split(":")[0] for f in lines if f[3] == "0A" and int(f[1].split(":")[1], 16) == port
    }


LOOPBACK = {"0100007F"}


def tags_of(shown):
    """TensorBoard's scalars by run; it reads the files after it answers."""
    return soon(lambda: json.loads(shown.get("data/plugin/scalars/tags")[1]))


def test_tensorboard_shows_the_runs_and_ends_with_ctrl_c(box, python):
    with fab("tensorboard", "--host", "box") as shown:
        run = f"{box.run_folder.name}/output/tensorboard"
        assert tags_of(shown) == {run: {"loss": {"displayName": "", "description": ""}}}
        (server,) = servers_of(python)
        far = int(re.search(rb"--port\0(\d+)", Path(f"/proc/{server}/cmdline").read_bytes())[1])
        assert listening(far) == LOOPBACK
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(30) == 0
        assert soon(lambda: not servers_of(python)), "the server outlived the command"
    views = box.home / ".gpubox" / "views"  # the server's folder goes after the server
    assert soon(lambda: not list(views.iterdir())), list(views.iterdir())


def test_tensorboard_of_one_run_shows_that_one(box):
    with fab("tensorboard", box.run_folder.name, "--host", "box") as shown:
        assert list(tags_of(shown)) == ["tensorboard"]


def test_the_notebook_wants_its_token_and_the_token_is_nowhere_to_be_read(box):
    with fab("notebook", "--host", "box") as shown:
        token = shown.token
        assert token not in shown.line and shown.door.stat().st_mode & 0o777 == 0o600
        assert shown.get("api/kernels")[0] == 403
        assert shown.get("api/kernels", token) == (200, b"[]")
        assert where_it_lies(token) == []
        (told,) = (box.home / ".gpubox" / "jupyter").glob("*.json")  # what the keeper asks
        assert told.stat().st_mode & 0o777 == 0o600
        server = json.loads(told.read_text())
        assert server["token"] == token
        assert listening(int(server["url"].rsplit(":", 1)[1].strip("/"))) == LOOPBACK
        door = shown.door
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(30) == 0
        assert not door.exists() and not told.exists()


def test_the_notebook_works_in_the_runs_output_and_has_the_input(box, python):
    with fab("notebook", box.run_folder.name, "--host", "box") as shown:
        listed = json.loads(shown.get("api/contents", shown.token)[1])["content"]
        assert [each["name"] for each in listed] == ["tensorboard"]
        status, kernel = shown.get("api/kernels", shown.token, method="POST", data=b"{}")
        assert status == 201
        (server,) = servers_of(python)
        environment = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
        assert f"GPUBOX_INPUT={box.input}".encode() in environment
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(30) == 0
        assert soon(lambda: not kernels_of(python)), "a kernel outlived the command"


def kernels_of(python):
    lines = Path("/proc").glob("[0-9]*/cmdline")
    return [each for each in lines if _has(each, b"ipykernel_launcher", str(python).encode())]


def _has(path, *words):
    try:
        return all(word in path.read_bytes() for word in words)
    except OSError:
        return False


def test_a_cut_link_is_an_error_here_and_the_end_of_the_server_there(box, python):
    with fab("notebook", "--host", "box") as shown:
        box.cut()
        assert shown.process.wait(40) == 12
        assert "Traceback" not in shown.process.stderr.read()
        assert soon(lambda: not servers_of(python)), "the server outlived its link"


def test_what_a_killed_view_left_behind_is_stopped_by_the_next(box, python):
    with fab("tensorboard", "--host", "box") as shown:
        views = box.home / ".gpubox" / "views"
        (folder,) = views.iterdir()
        os.kill(int(folder.name.split("-")[0]), signal.SIGKILL)
        assert soon(lambda: not servers_of(python)), "it ends with its parent"
        assert shown.process.wait(30) == 12
        assert folder.exists()
    with fab("tensorboard", "--host", "box"):
        assert not folder.exists() and len(list(views.iterdir())) == 1


@pytest.mark.parametrize(
    "words, code, said",
    [
        (("tensorboard", "20261130-0930-cnn-0000"), 41, "no run '20261130-0930-cnn-0000'"),
        (("notebook", "--hosts", "box,local"), 2, "notebook works on one box at a time"),
    ],
)
def test_what_can_not_be_shown_is_one_line(box, words, code, said):
    host = () if "--hosts" in words else ("--host", "box")
    done = subprocess.run([FAB, *words, *host], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr


def test_a_python_without_jupyter_is_named_with_the_remedy(sshd):
    sshd(toml=f'runner = "process"\npython = "{sys.executable}"')
    done = subprocess.run(
        [FAB, "notebook", "--host", "box"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 20
    assert "has no jupyterlab" in done.stderr and "-m pip install jupyterlab" in done.stderr


def test_no_browser_is_opened_without_a_desktop(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    assert not browser.can_open()
    monkeypatch.setenv("BROWSER", "true %s")
    assert browser.can_open()
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
    assert not browser.can_open()


def test_the_browser_gets_a_file_and_never_the_token(box, tmp_path, monkeypatch):
    called = tmp_path / "called"
    stub = tmp_path / "browser"
    stub.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{called}\ncp "${{1#file://}}" {called}.html\n'
    )
    stub.chmod(0o700)
    process = subprocess.Popen(
        [FAB, "notebook", "--host", "box"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": str(stub), "PYTHONUNBUFFERED": "1"},
    )
    line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/; Ctrl-C ends it\n", line)
    assert re.fullmatch(r"file:///\S+/open\.html\n", called.read_text())
    page = Path(f"{called}.html").read_text()
    assert re.search(r'content="0;url=http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}"', page)
