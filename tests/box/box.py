"""Real boxes for tests: containers with sshd, by kind also with init and an engine of their own.

    def test_something(boxes):
        box = boxes.start("engine")           # or "process", or "bare" (init and sshd only)
        box.run("systemctl", "is-system-running")          # past SSH, as root
        box.ssh("docker info")                              # by ssh, as the box's user
        with box.desk().open(box.name) as agent: ...        # as a verb does
        box.power_off(); box.power_on()       # its disks are as they were, /run and /tmp are empty

Kinds: "engine" (systemd as PID 1, sshd, dockerd with compose), "bare" (the same without an
engine: what bootstrap starts from), "process" (sshd alone, as pods and containers for rent are).
Users on each: root, and dev with sudo without a password; dev is in the group docker of "engine".
/data and /input are disks of their own (two volumes), unless `disks=False`.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import socket
import subprocess
import time
from pathlib import Path

from images import build
from tests.box.plant import may_plant, plant

HERE = Path(__file__).resolve().parent
KINDS = ("process", "bare", "engine")
START_SECONDS = 60.0
LABEL = "gpubox.test"
CLIENT = """\
Host {name}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile none
"""


def docker(*words, check=True, **options) -> subprocess.CompletedProcess:
    """One command of this machine's engine client; its output as text."""
    if "input" not in options:
        options["stdin"] = subprocess.DEVNULL
    done = subprocess.run(["docker", *words], capture_output=True, text=True, **options)
    if check and done.returncode != 0:
        raise RuntimeError(f"docker {' '.join(words)}: {done.stderr.strip()[-2000:]}")
    return done


@functools.cache  # a look at what is built takes a second, and there are many boxes
def box_image(kind: str) -> str:
    """Build the image of a kind (half a minute once, then nothing); returns its tag."""
    tag = f"gpubox-box:{kind}"
    ca = build.authority(dict(os.environ)) or os.devnull
    options = ["--secret", f"id=ca,src={ca}", "--build-arg", f"BASE={build.find_base('')}"]
    docker("build", "--quiet", "--target", kind, "--tag", tag, *options, str(HERE))
    return tag


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now; the box keeps it over a power-off."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Boxes:
    """The boxes of one test, with the laptop's files for them: ssh_config, known hosts, gpubox.toml."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.toml = folder / "gpubox.toml"
        self.ssh_config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self.key = folder / "key"
        self.started: list[Box] = []
        self.more = ""  # further tables for gpubox.toml
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        self.write()

    def start(self, kind="engine", name="", **options) -> Box:
        """Start a box and wait until it answers; see Box for the options."""
        box = Box(self, kind, name or f"{kind}-box{len(self.started) or ''}", **options)
        self.started.append(box)
        box.power_on()
        return box

    def write(self):
        """The client's files for all boxes, with the host keys that they have now."""
        toml = [f"ssh_config = {json.dumps(str(self.ssh_config))}"]
        for box in self.started:
            toml += [f"[boxes.{box.name}]", f"host = {json.dumps(box.name)}", box.toml]
        self.toml.write_text("\n".join([*toml, self.more]) + "\n")
        self.ssh_config.write_text("".join(box.client_lines() for box in self.started))
        self.known_hosts.write_text("".join(box.host_keys for box in self.started if box.known))

    def stop(self):
        """Remove every box with its disks."""
        for box in self.started:
            box.remove()


class Box:
    """One box. Options:

    user    who logs in: "root" or "dev"
    known   False: its host key is not in the laptop's known hosts
    disks   False: /data and /input don't exist
    toml    lines for its table in gpubox.toml
    more    more words for `docker run`, such as ["--memory", "2g"]
    """

    def __init__(self, boxes, kind, name, user="root", known=True, disks=True, toml="", more=()):
        self.boxes, self.kind, self.name, self.user = boxes, kind, name, user
        self.known, self.disks, self.toml, self.more = known, disks, toml, list(more)
        self.container = f"gpubox-box-{name}-{secrets.token_hex(4)}"
        self.host, self.port = "127.0.0.1", free_port()
        self.host_keys = ""

    @property
    def ssh_config(self) -> Path:
        return self.boxes.ssh_config

    def client_lines(self) -> str:
        files = {"key": self.boxes.key, "known_hosts": self.boxes.known_hosts}
        return CLIENT.format(name=self.name, port=self.port, user=self.user, **files)

    def power_on(self):
        """Start it, the first time or again, and wait until sshd (and its engine) answers."""
        if docker("container", "inspect", self.container, check=False).returncode != 0:
            docker(*self._run_words())
            self._let_in()
        else:
            docker("start", self.container)
        self._wait("sshd", lambda: self._banner().startswith(b"SSH-"))
        if self.kind == "engine":
            self._wait(
                "the engine", lambda: self.run("docker", "info", check=False).returncode == 0
            )
        keys = self.run("sh", "-c", "cat /etc/ssh/ssh_host_*.pub").stdout.splitlines()
        lines = [" ".join([f"[{self.host}]:{self.port}", *key.split()[:2]]) for key in keys]
        self.host_keys = "\n".join(lines) + "\n"
        self.boxes.write()

    def _run_words(self) -> list[str]:
        words = ["run", "--detach", "--name", self.container, "--hostname", self.name]
        words += ["--label", LABEL, "--publish", f"{self.host}:{self.port}:22"]
        if self.kind != "process":
            words += ["--privileged", "--env", "container=docker"]
            words += ["--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp"]
            words += ["--volume", "/var/lib/docker"]
        if self.disks:
            words += ["--volume", "/data", "--volume", "/input"]
        return [*words, *self.more, box_image(self.kind)]

    def _let_in(self):
        public = self.boxes.key.with_suffix(".pub").read_text()
        script = "umask 077; for h in /root /home/dev; do cat >$h/.ssh/authorized_keys <<END\n"
        script += f"{public}\nEND\ndone; chown -R dev:dev /home/dev/.ssh"
        self.run("sh", "-c", script)
        if self.disks:
            self.run("chown", "dev:dev", "/data", "/input")

    def _banner(self) -> bytes:
        try:
            with socket.create_connection((self.host, self.port), timeout=2) as connection:
                connection.settimeout(2)
                return connection.recv(64)
        except OSError:
            return b""

    def _wait(self, what, answers):
        deadline = time.monotonic() + START_SECONDS
        while not answers():
            if not self.is_on() or time.monotonic() > deadline:
                logs = docker("logs", "--tail", "30", self.container, check=False)
                raise RuntimeError(f"{self.container}: {what} does not answer:\n{logs.stderr}")
            time.sleep(0.1)

    def run(self, *words, user="root", check=True, **options) -> subprocess.CompletedProcess:
        """A command on the box, past SSH; `input=` gives it a stdin."""
        flags = ["--interactive"] if "input" in options else []
        return docker(
            "exec", "--user", user, *flags, self.container, *words, check=check, **options
        )

    def ssh(self, command, **options) -> subprocess.CompletedProcess:
        """A command by the system's ssh, as the box's user; never asks."""
        words = ["ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes", self.name, command]
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(words, capture_output=True, text=True, **options)

    def desk(self, **options):
        """A Desk for this box that asks nobody and prints nothing on stdout."""
        from deploy.console import Show
        from deploy.verbs.desk import Desk

        return Desk(Show(machine=True), [self.name], **options)

    def load(self, image):
        """Put an image of this machine's engine into the box's, without the kit's own way."""
        here = Path(docker("info", "--format", "{{.DockerRootDir}}").stdout.strip())
        disks = json.loads(docker("inspect", "--format", "{{json .Mounts}}", self.container).stdout)
        [there] = [Path(d["Source"]) for d in disks if d["Destination"] == "/var/lib/docker"]
        if not may_plant(here, there):
            return self._load_by_tar(image)
        digest = docker("image", "inspect", "--format", "{{.Id}}", image).stdout.strip()
        self.run("systemctl", "stop", "docker.socket", "docker.service")
        plant(digest, image, here, there)
        self.run("systemctl", "start", "docker.service")

    def _load_by_tar(self, image):
        save = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
        load = ["docker", "exec", "--interactive", self.container, "docker", "load", "--quiet"]
        subprocess.run(load, stdin=save.stdout, check=True, capture_output=True)
        assert save.wait() == 0

    def is_on(self) -> bool:
        state = docker("inspect", "--format", "{{.State.Running}}", self.container, check=False)
        return state.stdout.strip() == "true"

    def wait_off(self, seconds=60.0) -> int:
        """Wait until the box has switched itself off; returns 130 (power-off) or 129 (reboot)."""
        done = docker("wait", self.container, timeout=seconds)
        return int(done.stdout)

    def power_off(self):
        """A clean power-off, as `systemctl poweroff` does it (a process box: its stop)."""
        docker("stop", "--time", "30", self.container)

    def pull_the_plug(self):
        """Off at once: every process is killed."""
        docker("kill", self.container)

    def remove(self):
        docker("rm", "--force", "--volumes", self.container, check=False)
