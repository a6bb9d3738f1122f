"""Logging in as `ssh NAME` would: agents, locked keys, IPv6, jump hosts, Include and Match."""

import os
import re
import shutil
import subprocess
import time

import pytest

from deploy.errors import ConnectError
from tests.ssh.test_hostkeys import bulk

pytestmark = pytest.mark.sshd


@pytest.fixture
def agent(monkeypatch, tmp_path):
    """A real ssh-agent; `agent(path)` adds a key, `agent()` starts it with none."""
    socket = str(tmp_path / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    while not os.path.exists(socket):
        assert process.poll() is None
    monkeypatch.setenv("SSH_AUTH_SOCK", socket)

    def add(path, secret=""):
        helper = tmp_path / "askpass"
        helper.write_text(f"#!/bin/sh\necho '{secret}'\n")
        helper.chmod(0o700)
        extra = {"SSH_ASKPASS": str(helper), "SSH_ASKPASS_REQUIRE": "force"} if secret else {}
        subprocess.run(
            ["ssh-add", "-q", str(path)], check=True, env={**os.environ, **extra}, timeout=20
        )

    yield add
    process.terminate()
    process.wait(10)


def new_key(path, secret=""):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", secret, "-f", str(path)], check=True)
    return path


def lock(server, secret):
    command = ["ssh-keygen", "-q", "-p", "-P", "", "-N", secret, "-f", str(server.folder / "user")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def test_an_agent_of_eight_keys_does_not_use_up_the_tries(sshd, agent, tmp_path):
    server = sshd(extra="MaxAuthTries 3")
    for number in range(8):
        agent(new_key(tmp_path / f"other{number}"))
    assert bulk(server.link())[:2] == (0, b"here\n")


def test_a_locked_key_that_the_agent_holds_as_its_eighth_is_offered_first(sshd, agent, tmp_path):
    server = sshd(extra="MaxAuthTries 3")
    lock(server, "open sesame")
    for number in range(7):
        agent(new_key(tmp_path / f"other{number}"))
    agent(server.folder / "user", "open sesame")
    link = server.link()
    assert bulk(link)[:2] == (0, b"here\n")
    assert link.run("echo here").stdout == b"here\n"


def test_identities_only_offers_the_agents_copy_of_the_named_key(sshd, agent):
    server = sshd(client="  IdentitiesOnly yes")
    agent(server.folder / "user")
    (server.folder / "user").unlink()  # only user.pub is left, as with a hardware token
    assert bulk(server.link())[:2] == (0, b"here\n")


def test_too_many_keys_is_told_apart_from_no_key(sshd, agent, tmp_path):
    server = sshd(extra="MaxAuthTries 3")
    (server.folder / "user").unlink(), (server.folder / "user.pub").unlink()
    for number in range(8):
        agent(new_key(tmp_path / f"other{number}"))
    with pytest.raises(ConnectError, match="hung up after .* keys; IdentitiesOnly yes"):
        server.link()


def test_a_locked_key_without_agent_and_terminal_names_the_key(sshd):
    server = sshd()
    lock(server, "open sesame")
    with pytest.raises(ConnectError, match=re.escape(f"{server.folder}/user needs its passphrase")):
        server.link()


def test_a_locked_key_is_asked_for_once_and_serves_bulk_as_well(sshd, monkeypatch):
    server = sshd()
    lock(server, "open sesame")
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: asked.append(prompt) or "open sesame")
    link = server.link()
    assert bulk(link)[:2] == (0, b"here\n")
    server.cut()
    while link.transport.is_active():  # the kernel tells it at once, a busy machine later
        time.sleep(0.01)
    assert link.run("echo again").stdout == b"again\n"
    assert asked == [f"Passphrase for {server.folder}/user: "]


def test_a_key_that_the_box_does_not_know(sshd):
    server = sshd()
    (server.folder / "authorized_keys").write_text("")
    with pytest.raises(ConnectError, match="does not accept our keys .1 keys offered.") as caught:
        server.link()
    assert "ssh-copy-id" in caught.value.hint


def test_what_only_the_systems_ssh_can_do_is_left_to_it(sshd, monkeypatch):
    """As with Kerberos or a security key: paramiko has no key to offer, `ssh box` gets in."""
    server = sshd()
    monkeypatch.setattr("deploy.effects.login.load", lambda path, secret=None: iter(()))
    link = server.link()
    assert link.run("cat; exit 3", b"in and out") == (3, b"in and out", b"")
    assert bulk(link)[:2] == (0, b"here\n")


MODERN = "Ciphers chacha20-poly1305@openssh.com\nKexAlgorithms sntrup761x25519-sha512@openssh.com"


def test_ways_to_encrypt_that_only_the_systems_ssh_knows(sshd):
    server = sshd(extra=MODERN)
    link = server.link()
    assert link.run("cat; exit 3", b"in and out") == (3, b"in and out", b"")
    assert bulk(link)[:2] == (0, b"here\n")
    server.run_sshd("B")
    with pytest.raises(ConnectError, match="no common way to encrypt"):
        server.link(accept_new=True)  # its ssh refuses the changed key, so do we


def test_a_pinned_key_is_never_left_to_the_systems_ssh(sshd):
    server = sshd(extra=MODERN)
    with pytest.raises(ConnectError, match="no common way to encrypt"):
        server.link(fingerprint="SHA256:other")


def test_over_ipv6(sshd):
    server = sshd(address="::1", known=False)
    server.link(accept_new=True).close()
    assert server.boxes.known_hosts.read_text().startswith(f"[::1]:{server.port} ")
    assert bulk(server.link())[:2] == (0, b"here\n")


def connections_made(server):
    return (server.folder / "log").read_text().count("Accepted publickey")


def test_through_a_jump_host_each_with_its_own_key_checked(sshd):
    gate = sshd("gate")
    box = sshd("box", client="  ProxyJump gate", known=False)
    link = box.link(accept_new=True)
    assert link.run("echo here").stdout == b"here\n"
    assert bulk(link)[:2] == (0, b"here\n")
    assert connections_made(gate) == 2
    gate.run_sshd("B")
    from deploy.errors import HostKeyError

    with pytest.raises(HostKeyError, match="gate: THE HOST KEY HAS CHANGED"):
        box.link(accept_new=True)


def test_jump_hosts_are_offered_the_right_key_first_in_bulk_too(sshd, agent, tmp_path):
    """ssh's own ProxyJump offers a jump host all keys of an agent, and is hung up on."""
    for number in range(8):
        agent(new_key(tmp_path / f"other{number}"))
    sshd("first", extra="MaxAuthTries 3")
    sshd("second", client="  ProxyJump first", extra="MaxAuthTries 3")
    box = sshd("box", client="  ProxyJump second", extra="MaxAuthTries 3")
    plain = ["ssh", "-F", str(box.boxes.ssh_config), "-o", "BatchMode=yes", "box", "true"]
    assert subprocess.run(plain, capture_output=True).returncode == 255
    link = box.link()
    assert link.run("echo here").stdout == b"here\n"
    assert bulk(link)[:2] == (0, b"here\n")
    link.close()


def test_the_file_that_holds_the_host_key_is_named(sshd):
    server = sshd(known=False)
    other = server.folder / "other_hosts"
    text = server.boxes.ssh_config.read_text().replace(
        f"UserKnownHostsFile {server.boxes.known_hosts}",
        f"UserKnownHostsFile {server.boxes.known_hosts} {other}",
    )
    server.boxes.ssh_config.write_text(text)
    server.make_known()
    server.boxes.known_hosts.rename(other)
    link = server.link()
    assert link.describe()["host_key"] == f"known in {other}"
    link.close()


def test_the_fingerprint_of_the_box_is_not_asked_of_the_jump_host(sshd):
    sshd("gate")
    box = sshd("box", client="  ProxyJump gate", known=False)
    assert bulk(box.link(fingerprint=box.fingerprint()))[:2] == (0, b"here\n")


def test_a_chain_of_jump_hosts_and_the_first_ones_own_jump(sshd):
    first = sshd("first")
    second = sshd("second", client="  ProxyJump first")
    third = sshd("third")
    box = sshd("box", client="  ProxyJump second,third")
    link = box.link()
    assert link.run("echo here").stdout == b"here\n"
    assert [connections_made(each) for each in (first, second, third, box)] == [1, 1, 1, 1]


def test_a_jump_host_that_does_not_reach_the_box(sshd):
    sshd("gate")
    box = sshd("box", client="  ProxyJump gate")
    box.stop()
    with pytest.raises(ConnectError, match="gate does not reach 127.0.0.1 port"):
        box.link()


def test_proxy_jump_none_takes_back_what_a_later_block_sets(sshd):
    gate = sshd("gate")
    box = sshd("box", client="  ProxyJump none")
    with box.boxes.ssh_config.open("a") as file:
        file.write("Host *\n  ProxyJump gate\n")
    assert bulk(box.link())[:2] == (0, b"here\n")
    assert connections_made(gate) == 0


def test_a_proxy_command_with_its_tokens(sshd):
    if not shutil.which("nc") and not shutil.which("socat"):
        relay = "ssh -F {config} -W %h:%p gate"
    else:
        relay = "nc %h %p" if shutil.which("nc") else "socat - TCP:%h:%p"
    sshd("gate")
    box = sshd("box")
    box.client = "  ProxyCommand " + relay.format(config=box.boxes.ssh_config)
    box.boxes._write()
    link = box.link()
    assert link.run("echo here").stdout == b"here\n"
    assert bulk(link)[:2] == (0, b"here\n")


def test_include_and_match_are_read(sshd):
    server = sshd()
    part = server.boxes.folder / "part"
    server.boxes.ssh_config.replace(part)
    server.boxes.ssh_config.write_text(
        f'Include {part}\nMatch originalhost nickname exec "true"\n  HostName 127.0.0.1\n'
        f"  Port {server.port}\n  IdentityFile {server.folder}/user\n"
        f"  UserKnownHostsFile {server.boxes.known_hosts}\n"
    )
    for name in ("box", "nickname"):
        server.name = name
        assert bulk(server.link())[:2] == (0, b"here\n")


def test_a_config_that_ssh_does_not_understand_is_named(sshd):
    server = sshd()
    server.boxes.ssh_config.write_text("Hots box\n")
    with pytest.raises(ConnectError, match="ssh -G failed") as caught:
        server.link()
    assert str(server.boxes.ssh_config) in caught.value.hint


def test_a_box_that_is_off_costs_one_line(sshd):
    server = sshd()
    server.stop()
    with pytest.raises(ConnectError, match=f"no SSH at 127.0.0.1 port {server.port}") as caught:
        server.link()
    assert "is the box on?" in caught.value.hint
