"""Where transfer benches run: a fresh file system, a real sshd, a slow line, a slow disk. Needs root."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import random
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(__file__).resolve().parent / "tools"
SSHD = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
MaxSessions 100
MaxStartups 100
Subsystem sftp internal-sftp
SetEnv HOME={folder}/home
"""
CLIENT = """\
Host box
  HostName {address}
  Port {port}
  User {user}
  IdentityFile {folder}/user
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
"""
TOML = """\
ssh_config = "{folder}/ssh_config"
default_box = "box"
[boxes.box]
host = "box"
data = "{data}"
input = "{input}"
"""


@dataclass
class Ground:
    """A laptop and a box on this machine; `prefix` goes before each of the laptop's commands."""

    folder: Path
    address: str
    prefix: list[str] = field(default_factory=list)
    count: int = 0
    made: list[Path] = field(default_factory=list)
    server: int = 0  # process id of the sshd that listens
    cpu: float = (
        0.0  # s that the last command took on both sides: a fairer measure on a busy machine
    )

    def run(self, *command: str, **env: str) -> float:
        """Seconds that a command of the laptop takes; its output goes to `log`, its failure is ours."""
        os.sync()  # what the command before left unwritten is not for this one to write
        began, spent = time.monotonic(), self.cpu_so_far()
        with (self.folder / "log").open("ab") as log:
            log.write(("$ " + shlex.join(command) + "\n").encode())
            done = subprocess.run(
                [*self.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **env},
                cwd=ROOT,
            )
        if done.returncode != 0:
            tail = (self.folder / "log").read_text(errors="replace")[-2000:]
            raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}:\n{tail}")
        took = time.monotonic() - began
        time.sleep(0.3)  # the box's side of it has ended by now
        self.cpu = self.cpu_so_far() - spent
        return took

    def cpu_so_far(self) -> float:
        """Of all commands of the laptop that have ended, and of all sessions that sshd has served."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        fields = Path(f"/proc/{self.server}/stat").read_text().rsplit(")", 1)[1].split()
        served = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        return used.ru_utime + used.ru_stime + served

    def fresh(self, name: str) -> Path:
        """A new empty folder on the fresh file system: nothing was deleted there before."""
        self.count += 1
        path = self.folder / f"{name}-{self.count}"
        path.mkdir()
        self.made.append(path)
        return path

    def remove_fresh(self) -> None:
        """All that `fresh` made, with what commands put there, and off the disk."""
        for path in self.made:
            shutil.rmtree(path)
        self.made.clear()
        os.sync()

    def config(self, data: Path, fast: Path) -> dict[str, str]:
        """Environment of our own command for these folders of the box, and a laptop of its own."""
        toml = data.parent / f"{data.name}.toml"
        toml.write_text(TOML.format(folder=self.folder, data=data, input=fast))
        return {"GPUBOX_CONFIG": str(toml), "GPUBOX_HOME": f"{data}.laptop"}

    def ssh_options(self) -> list[str]:
        return ["-F", str(self.folder / "ssh_config")]


@contextlib.contextmanager
def ground(
    slow: bool, gigabytes: int = 12, lost: int = 0, congestion: str = ""
) -> Iterator[Ground]:
    """A Ground on an ext4 image of its own; `slow`: 50 ms round trip, 100 Mbit/s, else loopback.

    The slow line loses `lost` of a million packets; `congestion` is TCP's algorithm on it.
    """
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpubox-bench-")))
        folder = stack.enter_context(fresh_disk(base, gigabytes))
        line = (
            stack.enter_context(slow_line(base, lost, congestion))
            if slow
            else ("127.0.0.1", [], [])
        )
        address, client, server = line
        pid = stack.enter_context(ssh_server(folder, address, client, server))
        yield Ground(folder, address, client, server=pid)


@contextlib.contextmanager
def fresh_disk(base: Path, gigabytes: int) -> Iterator[Path]:
    image, mount = base / "image", base / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(gigabytes << 30)
    _do("mkfs.ext4", "-q", "-F", "-N", "2000000", "-E", "lazy_itable_init=0,nodiscard", str(image))
    _do("mount", "-o", "loop,noatime", str(image), str(mount))
    try:
        yield mount
    finally:
        _do("umount", "--lazy", str(mount))


@contextlib.contextmanager
def slow_line(
    base: Path, lost: int = 0, congestion: str = ""
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Two network namespaces with the long line between; address of the far one, both prefixes."""
    program = compiled(base, "slowline", "-lpthread")
    near, far = (f"gpubox-bench-{end}-{os.getpid()}" for end in ("near", "far"))
    for name in (near, far):
        _do("ip", "netns", "add", name)
    relay = None
    try:
        relay = subprocess.Popen(
            [program, near, far, "25000", "100", "60", str(lost)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert relay.stdout and relay.stdout.readline() == b"ready\n"
        for name, address, other in (
            (near, "10.77.0.1", "10.77.0.2"),
            (far, "10.77.0.2", "10.77.0.1"),
        ):
            _do("ip", "-n", name, "link", "set", "lo", "up")
            _do("ip", "-n", name, "addr", "add", address, "peer", other, "dev", "line0")
            _do("ip", "-n", name, "link", "set", "line0", "up")
            if congestion:
                rule = f"net.ipv4.tcp_congestion_control={congestion}"
                _do("ip", "netns", "exec", name, "sysctl", "-qw", rule)
        enter = ["ip", "netns", "exec"]
        yield "10.77.0.2", [*enter, near], [*enter, far]
    finally:
        if relay:
            relay.kill()
            relay.wait()
        for name in (near, far):
            _do("ip", "netns", "del", name)


@contextlib.contextmanager
def ssh_server(folder: Path, address: str, client: list[str], server: list[str]) -> Iterator[int]:
    (folder / "home").mkdir()
    for name in ("host", "user"):
        _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    port = _free_port() if address == "127.0.0.1" else 22
    values = {"folder": folder, "address": address, "port": port, "user": getpass.getuser()}
    (folder / "sshd_config").write_text(SSHD.format(**values))
    (folder / "ssh_config").write_text(CLIENT.format(**values))
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    shown = f"[{address}]:{port}" if port != 22 else address
    (folder / "known_hosts").write_text(f"{shown} {key}\n")
    Path("/run/sshd").mkdir(exist_ok=True)
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    command = [
        *server,
        sshd,
        "-D",
        "-f",
        str(folder / "sshd_config"),
        "-E",
        str(folder / "sshd.log"),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            probe = ["ssh", "-F", str(folder / "ssh_config"), "box", "true"]
            if subprocess.run([*client, *probe], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def slow_disk(base: Path, shown: Path, microseconds: int) -> Iterator[Path]:
    """`shown` through FUSE at a mount point; nothing of it is in the page cache."""
    program = compiled(base, "slowdisk", *_pkg_config("fuse3"))
    mount = base / f"slow-{time.monotonic_ns()}"
    mount.mkdir()
    process = subprocess.Popen([program, str(shown), str(mount), str(microseconds)])
    try:
        for _ in range(200):
            if os.path.ismount(mount):
                break
            time.sleep(0.02)
        yield mount
    finally:
        _do("umount", "--lazy", str(mount))
        process.wait(20)


def compiled(base: Path, name: str, *flags: str) -> str:
    program = base / name
    if not program.exists():
        _do("cc", "-O2", "-o", str(program), str(TOOLS / f"{name}.c"), *flags)
    return str(program)


def _pkg_config(name: str) -> list[str]:
    command = ["pkg-config", "--cflags", "--libs", name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _do(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def make_set(folder: Path, files: int, smallest: int, largest: int, a_folder: int = 500) -> Path:
    """A set of random files, the same every time."""
    source = random.Random(files)
    for i in range(files):
        where = folder / f"class{i // a_folder:03}"
        if i % a_folder == 0:
            where.mkdir(parents=True)
        size = source.randint(smallest, largest)
        with (where / f"image_{i:06}.png").open("wb") as file:
            for at in range(0, size, 1 << 20):
                file.write(source.randbytes(min(1 << 20, size - at)))
    return folder


def python() -> str:
    return sys.executable


def as_json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True)
