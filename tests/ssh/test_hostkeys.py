"""Host keys over a real sshd: unknown ones are asked for, changed ones refused on every path."""

import os
import pty
import re
import subprocess
import sys

import pytest

from deploy.errors import HostKeyError

pytestmark = pytest.mark.sshd


def bulk(link, command="echo here"):
    """What the system's ssh beside the control connection prints, and its exit code."""
    stream = link.stream(command)
    stream.stdin.close()
    printed, complaint = stream.stdout.read(), stream.stderr.read().decode()
    code = stream.wait()
    stream.close()
    return code, printed, complaint


def test_an_unknown_key_is_refused_where_nobody_can_be_asked(sshd):
    server = sshd(known=False)
    with pytest.raises(HostKeyError, match=re.escape(server.fingerprint())) as caught:
        server.link(ask=lambda question: True)  # would say yes, but there is no terminal
    assert "--accept-new" in caught.value.hint
    assert not server.boxes.known_hosts.exists()


def test_accept_new_takes_it_once_for_both_ways(sshd):
    server = sshd(known=False)
    server.link(accept_new=True).close()
    link = server.link()  # now it is known
    assert bulk(link)[:2] == (0, b"here\n")
    link.close()
    assert len(server.boxes.known_hosts.read_text().splitlines()) == 1


def test_a_new_key_is_written_hashed_where_ssh_would(sshd):
    server = sshd(known=False, client="  HashKnownHosts yes")
    server.link(accept_new=True).close()
    assert server.boxes.known_hosts.read_text().startswith("|1|")
    assert bulk(server.link())[:2] == (0, b"here\n")


def test_the_fingerprint_of_the_config_is_enough_and_the_only_one(sshd):
    server = sshd(known=False)
    with pytest.raises(HostKeyError, match="the config says SHA256:other"):
        server.link(fingerprint="SHA256:other", accept_new=True)
    link = server.link(fingerprint=server.fingerprint())
    assert bulk(link)[:2] == (0, b"here\n")
    with pytest.raises(HostKeyError, match="the config says SHA256:other"):
        server.link(fingerprint="SHA256:other")  # though the key itself is known by now


def test_a_changed_key_is_refused_by_control_whatever_the_flags(sshd):
    server = sshd()
    server.run_sshd("B")
    for flags in ({}, {"accept_new": True}, {"fingerprint": server.fingerprint()}):
        with pytest.raises(HostKeyError, match="HAS CHANGED") as caught:
            server.link(**flags)
        assert server.fingerprint() in caught.value.message
        assert f"ssh-keygen -R '[127.0.0.1]:{server.port}'" in caught.value.hint


def test_the_remedy_that_is_named_is_one_that_helps(sshd):
    server = sshd()
    server.run_sshd("B")
    with pytest.raises(HostKeyError) as caught:
        server.link()
    command = re.search(r"`(ssh-keygen[^`]*)`", caught.value.hint)[1]
    subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True)
    server.link(accept_new=True).close()


def test_a_key_that_changes_under_an_open_link_is_refused_by_bulk_and_by_reconnect(sshd):
    server = sshd()
    link = server.link()
    server.run_sshd("B")
    code, printed, complaint = bulk(link)
    assert (code, printed) == (255, b"") and "CHANGED" in complaint
    with pytest.raises(HostKeyError, match="HAS CHANGED"):
        link.run("echo here")


def test_another_type_of_key_than_the_known_one_counts_as_changed(sshd, tmp_path):
    server = sshd(known=False)
    rsa = tmp_path / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", rsa], check=True)
    known = (tmp_path / "rsa.pub").read_text().split()[:2]
    server.boxes.known_hosts.write_text(f"[127.0.0.1]:{server.port} {' '.join(known)}\n")
    with pytest.raises(HostKeyError, match="HAS CHANGED"):
        server.link(accept_new=True)


def test_where_the_server_has_several_keys_the_known_type_is_used(sshd, tmp_path):
    rsa = tmp_path / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", rsa], check=True)
    server = sshd(known=False, extra=f"HostKey {rsa}")
    known = (tmp_path / "rsa.pub").read_text().split()[:2]
    server.boxes.known_hosts.write_text(f"[127.0.0.1]:{server.port} {' '.join(known)}\n")
    assert bulk(server.link())[:2] == (0, b"here\n")


def test_a_revoked_key_is_refused_even_where_it_is_known_too(sshd):
    server = sshd()
    line = server.boxes.known_hosts.read_text()
    server.boxes.known_hosts.write_text(f"{line}@revoked {line}")
    with pytest.raises(HostKeyError, match="@revoked"):
        server.link(accept_new=True)


def test_a_pattern_and_an_alias_are_known_as_ssh_knows_them(sshd):
    server = sshd(client="  HostKeyAlias my-box")
    text = server.boxes.known_hosts.read_text().replace(f"[127.0.0.1]:{server.port}", "my-*")
    server.boxes.known_hosts.write_text(text)
    assert bulk(server.link())[:2] == (0, b"here\n")


def test_known_hosts_in_dev_null_does_not_mean_that_nothing_is_checked(sshd, own_home):
    server = sshd(known=False)
    server.boxes.known_hosts = "/dev/null"
    server.boxes._write()
    with pytest.raises(HostKeyError, match="unknown host key"):
        server.link()
    assert bulk(server.link(accept_new=True))[:2] == (0, b"here\n")
    assert (own_home / ".ssh" / "known_hosts").read_text().startswith("[127.0.0.1]")


@pytest.mark.parametrize("answer,code", [("y", 0), ("n", 10)])
def test_at_a_terminal_the_key_is_shown_and_asked_for(sshd, answer, code):
    server = sshd(known=False)
    said, status = at_a_terminal([sys.executable, "-m", "fabric", "facts", "--host", "box"], answer)
    assert server.fingerprint() in said
    assert os.waitstatus_to_exitcode(status) == code, said
    assert server.boxes.known_hosts.exists() == (code == 0)


def at_a_terminal(command, answer):
    """Run a command on a terminal of its own, answer its first question."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, answer.encode() + b"\n")
    try:
        while more := os.read(terminal, 4096):
            said += more
    except OSError:
        pass  # how Linux tells that the other end is closed
    return re.sub(r"\x1b\[[0-9;]*m|\s+", "", said.decode()), os.waitpid(child, 0)[1]


def test_every_other_way_that_opens_ssh_refuses_a_changed_key_too(sshd):
    server = sshd()
    link = server.link()
    server.run_sshd("B")
    shell = subprocess.run(link.terminal("echo here"), capture_output=True, text=True)
    pipe = link.pipe(server.port)
    pipe.stdin.close()
    assert (shell.returncode, shell.stdout) == (255, "") and "CHANGED" in shell.stderr
    assert pipe.stdout.read() == b"" and b"CHANGED" in pipe.stderr.read()
    assert pipe.wait() == 255
    pipe.close()


@pytest.mark.parametrize(
    "words",
    [
        ["facts"],
        ["doctor"],
        ["bootstrap"],
        ["status"],
        ["logs"],
        ["shell", "--command", "id"],
        ["forward", "--port", "1"],
        ["idle"],
        ["stage", "mnist"],
    ],
    ids=" ".join,
)
def test_every_verb_refuses_a_changed_key_with_the_same_code(sshd, words):
    server = sshd()
    server.run_sshd("B")
    command = [sys.executable, "-m", "fabric", *words, "--host", "box", "--accept-new"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 10, done.stdout + done.stderr
    assert "HAS CHANGED" in done.stdout + done.stderr
