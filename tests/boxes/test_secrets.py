"""A sentinel in every place that takes a secret, every verb run: it must turn up nowhere else."""

import hashlib
import json
import os
import pty
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

FAB = [sys.executable, "-m", "fabric"]
PROGRAM = """\
import hashlib, json, os, signal, sys, time
out = os.environ["GPUBOX_OUTPUT"]
def put(name, value):
    with open(os.path.join(out, name + ".new"), "w") as file:
        json.dump(value, file)
    os.replace(os.path.join(out, name + ".new"), os.path.join(out, name))
step = 0
def end(number, frame):
    sys.exit(75)
signal.signal(signal.SIGTERM, end)
digest = hashlib.sha256(os.environ["API_KEY"].encode()).hexdigest()
while "--fail" not in sys.argv or step < 3:
    step += 1
    put("progress.json", {"schema": 1, "step": step, "steps": 1000, "key": digest})
    time.sleep(0.1)
raise SystemExit("the program failed")
"""


class Watch:
    """Looks at the argv and environment of every process, again and again, for a sentinel."""

    def __init__(self, sentinel):
        self.sentinel = sentinel.encode()
        self.found, self.looks = [], 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look_for_ever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    def _look_for_ever(self):
        while not self._end.wait(0.01):
            self.looks += 1
            for name in os.listdir("/proc"):
                if name.isdigit():
                    self._look_at(f"/proc/{name}")

    def _look_at(self, folder):
        try:
            argv, environ = (read_quickly(f"{folder}/{name}") for name in ("cmdline", "environ"))
        except OSError:
            return
        the_program = b"GPUBOX_RUN=" in environ  # it is what the secret is for
        if self.sentinel in argv or (self.sentinel in environ and not the_program):
            self.found.append(argv.replace(b"\0", b" ").decode(errors="replace"))


def read_quickly(path):
    """The bytes of a file of /proc, without a file object: a look is some hundred of them."""
    file = os.open(path, os.O_RDONLY)
    try:
        content = b""
        while more := os.read(file, 65536):
            content += more
        return content
    finally:
        os.close(file)


def files_with(sentinel, *folders):
    """{path: mode} of every file below the folders whose content or name has the sentinel."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            named = sentinel in str(path.relative_to(folder))
            if named or (path.is_file() and sentinel.encode() in path.read_bytes()):
                found[path] = path.stat().st_mode & 0o777
    return found


def test_the_watch_sees_arguments_and_environments(sentinel):
    for words, extra in (
        (["sh", "-c", "sleep 9", sentinel], {}),
        (["sleep", "9"], {"KEY": sentinel}),
    ):
        with Watch(sentinel) as watch:
            child = subprocess.Popen(words, env={**os.environ, **extra}, stderr=subprocess.PIPE)
            deadline = time.monotonic() + 10
            while not watch.found and time.monotonic() < deadline and child.poll() is None:
                time.sleep(0.01)
            child.kill(), child.communicate()
        assert watch.found


@pytest.fixture
def sentinel():
    return "SENTINEL" + secrets.token_hex(12)


@pytest.fixture
def laptop(tmp_path, sentinel, own_home):
    """A project with an env file, a program, a data set, and a package index that needs a login."""
    (tmp_path / "code").mkdir(), (tmp_path / "set").mkdir()
    (tmp_path / "code" / "train.py").write_text(PROGRAM)
    (tmp_path / "set" / "a.txt").write_text("data")
    (tmp_path / "secret.env").write_text(f"API_KEY={sentinel}\n")
    (tmp_path / "secret.env").chmod(0o600)
    return tmp_path


def settings(server, laptop, runner):
    text = server.boxes.toml.read_text()
    run = f"""
[data.set]
path = "{laptop}/set"
[run]
data = "set"
command = ["python", "train.py"]
code = "{laptop}/code"
env_file = "{laptop}/secret.env"
"""
    box = runner + 'device = "cpu"\nprovider = "onprem"\n'
    server.boxes.toml.write_text(text + box + run)


class Phone(ThreadingHTTPServer):
    """Takes notices at an address that is itself the secret."""

    def __init__(self):
        class Ear(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.server.heard.append(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Ear)
        self.heard = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


def channels(server, laptop, phone, sentinel):
    """Two webhooks whose addresses are secrets; nobody answers at the second."""
    for name, port in (("phone", phone.server_port), ("dead", 9)):
        (laptop / name).write_text(f"http://127.0.0.1:{port}/{sentinel}\n")
    text = server.boxes.toml.read_text()
    rule = 'provider = "onprem"\n[boxes.box.idle]\nnotify = ["phone", "dead"]\n'
    files = f'[notify]\nphone = "{laptop}/phone"\ndead = "{laptop}/dead"\n'
    server.boxes.toml.write_text(text + rule + files)


@pytest.mark.sshd
@pytest.mark.slow
def test_the_address_of_a_channel_is_in_the_keepers_file_and_nowhere_else(
    sshd, laptop, sentinel, own_home
):
    server, phone = sshd(), Phone()
    channels(server, laptop, phone, sentinel)
    hands = Laptop(laptop)
    try:
        with Watch(sentinel) as watch:
            hands.fab("idle", "--arm", code=0)
            hands.fab("idle", "--try-notice")
            hands.fab("idle", "--json", code=0)
            hands.fab("doctor", "--json", code=0)
    finally:
        hands.fab("idle", "--disarm")
    assert phone.heard and set(phone.heard) == {f"/{sentinel}"}
    assert watch.looks > 20 and not watch.found
    assert sentinel not in "\n".join(hands.said)
    found = files_with(sentinel, server.folder, own_home)
    assert set(found) <= {server.home / ".gpubox/keeper/channels.json"}
    assert set(found.values()) <= {0o600}


def pip_settings(home, sentinel):
    (home / ".config" / "pip").mkdir(parents=True, exist_ok=True)
    text = f"[global]\nindex-url = http://user:{sentinel}@127.0.0.1:9/simple\n"
    (home / ".config" / "pip" / "pip.conf").write_text(text)


class Laptop:
    """Runs verbs and keeps all that they say."""

    def __init__(self, folder):
        self.folder, self.said = folder, []

    def fab(self, *words, code=None, **environment):
        done = subprocess.run(
            [*FAB, *words, "--host", "box", "--debug"],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": ".", **environment},
        )
        self.said += [f"$ fab {' '.join(words)}", done.stdout, done.stderr]
        assert code is None or done.returncode == code, "\n".join(self.said[-3:])
        return done

    def fab_for_a_while(self, *words):
        """A verb that stays: until it names its address (or fails), then Ctrl-C."""
        command = [*FAB, *words, "--host", "box", "--debug", "--no-browser"]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = {**os.environ, "PYTHONPATH": ".", "PYTHONUNBUFFERED": "1"}
        child = subprocess.Popen(command, env=environment, **output)
        lines = []
        for line in child.stdout:
            lines.append(line)
            if "Ctrl-C ends it" in line:
                child.send_signal(signal.SIGINT)
        child.wait(60)
        self.said += [f"$ fab {' '.join(words)}", *lines]
        return "".join(lines)

    def run_of(self, done):
        return re.search(r"\d{8}-\d{4}-[\w-]+", done.stdout + done.stderr)[0]


def engine_says(run):
    """All that the engine tells of a run's containers and their images; "" where there are none."""
    if shutil.which("docker") is None:
        return ""
    words = ["docker", "ps", "--all", "--quiet", "--filter", f"label=gpubox.run={run}"]
    containers = subprocess.run(words, capture_output=True, text=True).stdout.split()
    told = []
    for container in containers:
        told += [output("docker", "inspect", container), output("docker", "logs", container)]
        image = json.loads(told[0])[0]["Image"]
        told += [
            output("docker", "history", "--no-trunc", image),
            output("docker", "inspect", image),
        ]
    return "\n".join(told)


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def every_verb(laptop, out):
    """The life of two runs, one of which fails, with everything that can be asked about them."""
    laptop.fab("facts", code=0)
    laptop.fab("doctor", "--json", code=0)
    laptop.fab("bootstrap", "--dry-run", code=0)
    laptop.fab("upload", "set", code=0)
    laptop.fab("stage", "set", code=0)
    run = laptop.run_of(laptop.fab("launch", code=0))
    laptop.said += [engine_says(run)]
    for words in (
        ["status"],
        ["status", "--json"],
        ["status", "--run", run],
        ["logs", "--run", run],
    ):
        laptop.fab(*words, code=0)
    laptop.fab("stop", "--run", run, code=0)
    laptop.fab("resume", "--run", run, code=0)
    laptop.fab("stop", "--run", run, code=0)
    failed = laptop.run_of(laptop.fab("launch", "--args=--fail"))
    for _ in range(100):
        if "failed" in laptop.fab("status", "--run", failed, "--json").stdout:
            break
        time.sleep(0.2)
    laptop.fab("logs", "--run", failed, code=0)
    laptop.fab("fetch", "--run", run, "--logs-only", "--to", str(out), code=0)
    laptop.fab("export", "--to", "kubernetes", "--image", "example/image:1", code=0)
    laptop.fab("rm", "--run", failed, code=0)
    return run, deployed(laptop)


def deployed(laptop):
    """The verbs around a deploy; some of them fail, which is what they are here for."""
    found = laptop.fab("deploy", "--new", "--json", code=0)
    run = json.loads(found.stdout)["results"][0]["id"]
    laptop.said += [engine_says(run)]
    laptop.fab("deploy", "--json", code=0)
    laptop.fab("hold", "--time", "1m", "--why", "a test", code=0)
    for verb in ("idle", "cost", "data", "unlock"):
        laptop.fab(verb, code=0)
    for words in (["watch", "--once"], ["down", "--dry-run"], ["gc", "--dry-run"]):
        laptop.fab(*words)
    for words in (["up"], ["forward"], ["help"], ["completion"], ["compare", run], ["notify"]):
        laptop.fab(*words)
    for words in (["build", "--dry-run"], ["ship", "--dry-run"], ["ship", "--image", "absent"]):
        laptop.fab(*words)
    for verb in ("tensorboard", "notebook"):
        laptop.fab_for_a_while(verb)
    laptop.fab("evaluate", "--checkpoint", "none")
    laptop.fab("shell", "--command", "id")
    laptop.fab("stop", "--run", run, code=0)
    return run


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.engine)])
def runner(request):
    """Lines for the box's table: how it starts runs."""
    if request.param == "docker":
        request.getfixturevalue("cpu_image")
        return 'runner = "docker"\n'
    return f'runner = "process"\npython = "{sys.executable}"\n'


@pytest.mark.sshd
@pytest.mark.slow
def test_a_runs_secret_and_an_index_password_stay_where_they_belong(
    sshd, laptop, runner, sentinel, own_home
):
    server = sshd()
    settings(server, laptop, runner)
    pip_settings(server.home, sentinel)
    hands = Laptop(laptop)
    try:
        with Watch(sentinel) as watch:
            run, second = every_verb(hands, laptop / "fetched")
    finally:
        hands.fab("idle", "--disarm")
    assert watch.looks > 20 and not watch.found
    assert sentinel not in "\n".join(hands.said)
    progress = json.loads((server.data / "runs" / run / "output/progress.json").read_text())
    assert progress["key"] == hashlib.sha256(sentinel.encode()).hexdigest()  # it did get it
    assert ('"Mounts"' in "\n".join(hands.said)) == ("docker" in runner)
    own = {laptop / "secret.env", server.home / ".config/pip/pip.conf"}
    runs = {server.data / "runs" / each / "env" for each in (run, second)}
    found = files_with(sentinel, laptop, server.folder, own_home)
    assert set(found) == own | runs
    assert {found[path] for path in runs} == {0o600}


@pytest.mark.sshd
@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_builds_that_fail_say_nothing_of_an_index_password(sshd, laptop, sentinel, cpu_image):
    """Here, on the box, in a deploy: the laptop's pip.conf and the box's each have the password, and
    nobody answers at that index."""
    server = sshd()
    settings(server, laptop, 'runner = "docker"\n')
    text = server.boxes.toml.read_text()
    (laptop / "own.txt").write_text("gpubox-no-such-package==1\n")
    server.boxes.toml.write_text(text + f'requirements = "{laptop}/own.txt"\n')
    conf = f"[global]\nindex-url = http://user:{sentinel}@127.0.0.1:9/simple\nretries = 0\n"
    (laptop / "pip.conf").write_text(conf)
    pip_settings(server.home, sentinel)
    (server.home / ".config/pip/pip.conf").write_text(conf)
    hands = Laptop(laptop)
    own = {"PIP_CONFIG_FILE": str(laptop / "pip.conf")}
    try:
        with Watch(sentinel) as watch:
            for words in (["build"], ["ship"], ["deploy"], ["doctor"]):
                done = hands.fab(*words, **own)
                assert (done.returncode == 0) == (words == ["doctor"]), done.stderr[-2000:]
    finally:
        hands.fab("idle", "--disarm")
    said = "\n".join(hands.said)
    assert "gpubox-no-such-package" in said and "install-own" in said  # pip was asked for it
    assert watch.looks > 20 and not watch.found and sentinel not in said
    own = {laptop / "secret.env", laptop / "pip.conf", server.home / ".config/pip/pip.conf"}
    assert set(files_with(sentinel, laptop, server.folder)) == own
    assert sentinel not in output("docker", "image", "ls", "--all", "--no-trunc")


@pytest.mark.sshd
def test_a_typed_passphrase_is_in_no_argv_and_nowhere_on_disk(sshd, sentinel, own_home):
    server = sshd()
    command = [
        "ssh-keygen",
        "-q",
        "-p",
        "-P",
        "",
        "-N",
        sentinel,
        "-f",
        str(server.folder / "user"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with Watch(sentinel) as watch:
        said, status = type_at_a_terminal([*FAB, "facts", "--host", "box", "--debug"], sentinel)
    assert os.waitstatus_to_exitcode(status) == 0, said
    assert watch.looks > 5 and not watch.found
    assert sentinel not in said
    assert not files_with(sentinel, server.folder, own_home)


def type_at_a_terminal(command, secret):
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    said = b""
    while b"Passphrase" not in said:
        said += os.read(terminal, 4096)
    time.sleep(0.3)  # getpass switches the echo off only after it has asked
    os.write(terminal, secret.encode() + b"\n")
    try:
        while more := os.read(terminal, 4096):
            said += more
    except OSError:
        pass  # how Linux tells that the other end is closed
    return said.decode(), os.waitpid(child, 0)[1]
