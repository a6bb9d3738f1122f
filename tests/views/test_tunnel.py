"""Ports of a box through a real sshd, and of this machine: what goes in comes out, and how it ends."""

import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deploy.effects import tunnel as tunnels
from deploy.effects.link import LocalLink
from deploy.effects.tunnel import Tunnel
from deploy.errors import LinkLost, RunFailed, UsageError
from deploy.verbs.shell import inside_run
from tests.sshd import free_port

ROOT = Path(__file__).resolve().parents[2]
FAB = Path(sys.executable).parent / "fab"


@contextmanager
def echo_server():
    """Sends back what comes, and closes only after the other side has ended its half."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    near, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(near,), daemon=True).start()

        def echo(near):
            with near:
                while data := near.recv(65536):
                    near.sendall(data)
                near.sendall(b"<end>")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def there_and_back(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as near:
        sender = threading.Thread(target=send_all, args=(near, data), daemon=True)
        sender.start()
        answer = b"".join(iter(lambda: near.recv(65536), b""))
        sender.join(20)
        return answer


def send_all(near, data):
    with suppress(OSError):
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.sshd)])
def link(request):
    link = LocalLink() if request.param == "local" else request.getfixturevalue("sshd")().link()
    yield link
    link.close()


def test_bytes_go_there_and_back_and_each_half_ends_by_itself(link):
    data = os.urandom(3_000_000)
    with echo_server() as far, Tunnel(link, far) as tunnel:
        assert tunnel.port != far  # taken on this machine, which is the box as well here
        answers = [None] * 8

        def one(i):
            answers[i] = there_and_back(tunnel.port, data[i:])

        callers = [threading.Thread(target=one, args=(i,)) for i in range(8)]
        for each in callers:
            each.start()
        for each in callers:
            each.join(60)
        assert answers == [data[i:] + b"<end>" for i in range(8)]


def test_the_port_is_bound_to_loopback_only(link):
    with echo_server() as far, Tunnel(link, far) as tunnel:
        listening = Path("/proc/net/tcp").read_text().splitlines()
        bound = [line.split()[1] for line in listening if f":{tunnel.port:04X} " in line]
        assert f"0100007F:{tunnel.port:04X}" in bound
        assert not any(each.startswith("00000000:") for each in bound)


def test_nothing_listening_is_said_once_and_the_tunnel_stays(link):
    free, heard = free_port(), []
    with Tunnel(link, free, free_port(), heard.append) as tunnel:  # not itself: one machine here
        assert there_and_back(tunnel.port, b"") == b""
        assert there_and_back(tunnel.port, b"") == b""
    assert len(heard) == 1 and f"nothing listens on its 127.0.0.1:{free}" in heard[0]


def test_a_taken_local_port_is_refused_with_the_remedy():
    with echo_server() as far:
        with pytest.raises(UsageError, match=f"port {far} of this machine can't be used"):
            Tunnel(LocalLink(), 9, far)
        with pytest.raises(UsageError, match=f"port {far} of local is on this machine already"):
            Tunnel(LocalLink(), far, far)


@pytest.mark.sshd
def test_sshd_that_forbids_forwarding_is_named(sshd):
    heard = []
    link = sshd(extra="AllowTcpForwarding no").link()
    with echo_server() as far, Tunnel(link, far, on_refused=heard.append) as tunnel:
        assert there_and_back(tunnel.port, b"") == b""
    assert heard == ["box: its sshd does not forward ports"]
    link.close()


@pytest.mark.sshd
def test_max_sessions_1_is_enough(sshd):
    link = sshd(extra="MaxSessions 1").link()
    with echo_server() as far, Tunnel(link, far) as tunnel:
        assert link.run("echo here").stdout == b"here\n"
        assert there_and_back(tunnel.port, b"abc") == b"abc<end>"
    link.close()


@pytest.mark.sshd
def test_where_only_the_systems_ssh_gets_in_it_carries_the_tunnel_too(sshd):
    link = sshd().link()
    link._by_system_ssh = True  # as after a login by a security key
    with echo_server() as far, Tunnel(link, far) as tunnel:
        assert there_and_back(tunnel.port, b"abc" * 99_999) == b"abc" * 99_999 + b"<end>"
    link.close()


@pytest.mark.sshd
def test_a_cut_link_ends_the_wait_and_frees_the_port(sshd):
    server = sshd()
    link = server.link()
    with echo_server() as far, Tunnel(link, far) as tunnel:
        threading.Timer(0.5, server.cut).start()
        with pytest.raises(LinkLost, match="the connection died"):
            tunnel.wait()
    socket.create_server(("127.0.0.1", tunnel.port)).close()


@pytest.mark.sshd
def test_a_frozen_link_is_noticed(sshd, monkeypatch):
    monkeypatch.setattr(tunnels, "PROBE_EVERY", 0.5)
    monkeypatch.setattr(tunnels, "PROBE_DEADLINE", 1.0)
    server = sshd()
    link = server.link()
    with Tunnel(link, 9) as tunnel:
        threading.Timer(1.2, server.freeze).start()
        with pytest.raises(LinkLost):
            tunnel.wait()
    server.thaw()
    link.close()


def test_our_deadlines_notice_a_frozen_link_within_30_seconds():
    assert tunnels.PROBE_EVERY + tunnels.PROBE_DEADLINE <= 30


@pytest.mark.sshd
@pytest.mark.parametrize("end", ["ctrl-c", "cut"])
def test_fab_forward_ends_cleanly(sshd, end):
    server = sshd()
    with echo_server() as far:
        fab = subprocess.Popen(
            [FAB, "forward", str(far), "--host", "box"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        words = fab.stdout.readline()
        port = int(words.split(" is port ")[0].rsplit(":", 1)[1])
        assert there_and_back(port, b"x") == b"x<end>"
        if end == "ctrl-c":
            fab.send_signal(signal.SIGINT)
        else:
            server.cut()
        assert fab.wait(20) == (0 if end == "ctrl-c" else 12)
        errors = fab.stderr.read()
        assert ("error:" in errors) == (end == "cut") and "Traceback" not in errors


@pytest.mark.sshd
def test_fab_shell_has_a_terminal_on_the_box(sshd):
    server = sshd()
    master, slave = pty.openpty()
    fab = subprocess.Popen(
        [FAB, "shell", "--host", "box", "--command", 'tty; echo "in $HOME"; exit 7'],
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    shown, deadline = b"", time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            shown += os.read(master, 4096)
        except OSError:
            break
    assert fab.wait(20) == 7
    assert b"/dev/pts/" in shown and f"in {server.home}".encode() in shown


@pytest.mark.sshd
def test_a_command_of_fab_shell_needs_no_terminal(sshd):
    server = sshd()
    done = subprocess.run(
        [FAB, "shell", "--host", "box", "--command", 'cat; echo "in $HOME"; exit 7'],
        cwd=ROOT,
        input="from here\n",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"from here\nin {server.home}\n"


@pytest.mark.sshd
def test_fab_shell_refuses_a_changed_host_key(sshd):
    server = sshd()
    server.run_sshd("B")
    done = subprocess.run(
        [FAB, "shell", "--host", "box", "--command", "true"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 10 and "HOST KEY HAS CHANGED" in done.stderr


@pytest.mark.parametrize(
    "runner, state, said",
    [
        ("process", "finished", "cd '/da ta/r' && exec /bin/sh -c 'echo $(id)'"),
        ("docker", "running", '"$(docker ps -q --filter label=gpubox.run=r1)" /bin/sh -c'),
    ],
)
def test_a_shell_inside_a_run(runner, state, said):
    record = {"id": "r1", "folder": "/da ta/r", "run": {"runner": runner}}
    line = inside_run({**record, "state": {"state": state}}, "echo $(id)")
    assert said in shlex.split(line)[3]


def test_there_is_no_shell_inside_a_container_that_is_gone():
    record = {"id": "r1", "run": {"runner": "docker"}, "state": {"state": "finished"}}
    with pytest.raises(RunFailed, match="r1 is finished: it has no container"):
        inside_run(record, "")
