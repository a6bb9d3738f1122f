"""Throw-away sshd servers for tests: own port, host key, user key, known hosts and gpubox.toml.

    def test_something(sshd):
        server = sshd()              # the box "box" of gpubox.toml, its host key already known
        with server.desk().open("box") as box:
            box.call("facts")

A session on such a box has a HOME, /data and /input of its own (`server.home`, `.data`, `.input`),
but it is this machine in every other respect.
"""

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/{key}
AuthorizedKeysFile {folder}/authorized_keys
SetEnv HOME={home}
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
Subsystem sftp internal-sftp
{extra}
"""
CLIENT = """\
Host {name}
  HostName {address}
  Port {port}
  User {user}
  IdentityFile {folder}/user
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile none
{extra}
"""


class Boxes:
    """The servers of one test, and the files that a laptop would have for them."""

    def __init__(self, folder):
        self.folder = folder
        self.toml = folder / "gpubox.toml"
        self.ssh_config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self.servers = []
        self._write()

    def start(self, name="box", **options):
        """Start one more server; see Server for the options."""
        program = shutil.which("sshd") or "/usr/sbin/sshd"
        if not Path(program).is_file():
            pytest.skip("sshd is not installed (apt-get install openssh-server)")
        server = Server(self, name, program, **options)
        self.servers.append(server)
        self._write()
        if server.known:
            server.make_known()
        return server

    def stop(self):
        for server in self.servers:
            server.stop()

    def _write(self):
        lines = [f"ssh_config = {json.dumps(str(self.ssh_config))}"]
        for server in self.servers:
            lines += [f"[boxes.{server.name}]", f"host = {json.dumps(server.name)}"]
            lines += [f'{key} = "{getattr(server, key)}"' for key in ("data", "input")]
            lines += [server.toml]
        self.toml.write_text("\n".join(lines) + "\n")
        self.ssh_config.write_text("".join(each.client_lines() for each in self.servers))


class Server:
    """One sshd. Options:

    extra     lines for sshd_config, such as "MaxSessions 1"
    client    lines for this host in the laptop's ssh_config, such as "  ProxyJump other"
    toml      lines for its table in gpubox.toml
    login     a shell that gets every command, as a login shell would ("fish", "tcsh")
    banner    what every command prints on stdout before it does anything
    address   "127.0.0.1" or "::1"
    known     False: its host key is not in the laptop's known hosts yet
    """

    def __init__(
        self,
        boxes,
        name,
        program,
        extra="",
        client="",
        toml="",
        login="",
        banner="",
        address="127.0.0.1",
        known=True,
    ):
        self.boxes, self.name, self.known, self.address = boxes, name, known, address
        self.client, self.toml, self._program = client, toml, program
        self.folder = boxes.folder / name
        self.home = self.folder / "home"
        self.data, self.input = self.folder / "data", self.folder / "input"
        for each in (self.home, self.data, self.input):
            each.mkdir(parents=True)
        self.extra = extra + "\n" + _force(login, banner)
        self.port = free_port(address)
        _key(self.folder / "A"), _key(self.folder / "user")
        shutil.copy(self.folder / "user.pub", self.folder / "authorized_keys")
        self._process = None
        self.run_sshd("A")

    def run_sshd(self, key="A"):
        """(Re)start it with the host key of that name: another name is another key."""
        self.stop()
        _key(self.folder / key)
        self.key = key
        settings = self.folder / "sshd_config"
        settings.write_text(CONFIG.format(**{**vars(self), "extra": self.extra}))
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        command = [self._program, "-D", "-f", str(settings), "-E", str(self.folder / "log")]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        _wait_for_port(self.address, self.port, self._process, self.folder / "log")

    def client_lines(self):
        user, known_hosts = getpass.getuser(), self.boxes.known_hosts
        values = {**vars(self), "user": user, "known_hosts": known_hosts, "extra": self.client}
        return CLIENT.format(**values)

    def make_known(self):
        public = (self.folder / f"{self.key}.pub").read_text().split()[:2]
        with self.boxes.known_hosts.open("a") as file:
            file.write(f"[{self.address}]:{self.port} {' '.join(public)}\n")

    def fingerprint(self):
        command = ["ssh-keygen", "-lf", str(self.folder / f"{self.key}.pub")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]

    def desk(self, **options):
        """A Desk for this box that asks nobody and prints nothing on stdout."""
        from deploy.console import Show
        from deploy.verbs.desk import Desk

        return Desk(Show(machine=True), [self.name], **options)

    def link(self, **options):
        """An open SshLink; HostKeys' options may be given."""
        from deploy.effects.hostkeys import HostKeys
        from deploy.effects.ssh import SshLink

        return SshLink(self.name, HostKeys(**options), str(self.boxes.ssh_config))

    def connections(self):
        """Process ids of the sshd processes that serve a connection, the listener left out."""
        return [pid for pid in descendants(self._process.pid) if _is_sshd(pid)]

    def freeze(self):
        """Stop every connection's process, as a dead network would: nothing more comes."""
        self._signal(signal.SIGSTOP)

    def freeze_listener(self):
        """New connections are taken by the kernel and never answered."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw_listener(self):
        os.kill(self._process.pid, signal.SIGCONT)

    def thaw(self):
        self._signal(signal.SIGCONT)

    def cut(self):
        """End every connection at once, without a goodbye."""
        self._signal(signal.SIGKILL)

    def _signal(self, number):
        for pid in self.connections():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self):
        if self._process is None:
            return
        self.cut()
        self._process.terminate()
        self._process.wait(10)
        self._process = None


def _force(login, banner):
    if not login and not banner:
        return ""
    shell = shutil.which(login) if login else "/bin/sh"
    if not shell:
        pytest.skip(f"{login} is not installed")
    say = f"echo {banner}; " if banner else ""
    # sshd reads a ForceCommand to the end of its line and gives it to the login shell's -c
    return f'ForceCommand {say}exec {shell} -c "$SSH_ORIGINAL_COMMAND"'


def _key(path):
    if not path.exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(command, check=True)


def free_port(address="127.0.0.1"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
            return probe.getsockname()[1]
    except OSError as no:
        pytest.skip(f"{address}: {no.strerror}")


def _wait_for_port(address, port, process, log):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError(f"sshd did not start: {log.read_text() if log.exists() else 'no log'}")


def descendants(pid):
    """Every process below one, from /proc."""
    found = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in task.read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def _is_sshd(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("sshd")
    except OSError:
        return False
