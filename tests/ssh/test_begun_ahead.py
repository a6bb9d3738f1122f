"""A stream that is begun before the login: it saves its own login's time, and is never relied on."""

import subprocess

import pytest

from deploy.effects.hostkeys import HostKeys
from deploy.effects.link import LocalLink
from deploy.effects.ssh import SshLink
from deploy.errors import HostKeyError
from deploy.onbox.wire import EVENT

HELLO = "echo " + EVENT.decode() + '"{\\"up\\": true}" >&2; exec cat'


@pytest.fixture
def begun(monkeypatch):
    """The children that links began by the system's ssh."""
    found, begin = [], SshLink._system_ssh

    def noted(self, command):
        found.append(begin(self, command))
        return found[-1]

    monkeypatch.setattr(SshLink, "_system_ssh", noted)
    return found


def link_to(server, keys=None):
    config = str(server.boxes.ssh_config)
    return SshLink(server.name, keys or HostKeys(), config, ahead=HELLO)


def echoed(stream):
    stream.stdin.write(b"there and back")
    stream.stdin.close()
    found = stream.stdout.read()
    assert stream.wait() == 0
    stream.close()
    return found


def test_the_stream_is_the_one_that_was_begun(sshd, begun):
    link = link_to(sshd())
    assert len(begun) == 1
    stream = link.stream(HELLO)
    assert stream is begun[0] and echoed(stream) == b"there and back"
    second = link.stream(HELLO)  # there was only one
    assert second is begun[1] and echoed(second) == b"there and back"
    link.close()


def test_another_command_gets_a_stream_of_its_own_and_the_unused_one_ends_with_the_link(
    sshd, begun
):
    link = link_to(sshd())
    assert link.stream("exec cat") is begun[1]
    assert begun[0].process.poll() is None
    link.close()
    assert begun[0].process.poll() is not None


def test_a_host_key_that_is_learnt_on_the_way_is_not_taken_before(sshd, begun, monkeypatch):
    """While somebody is asked about the key, what was begun is refused by its own ssh."""
    server = sshd(known=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    link = link_to(server, HostKeys(ask=lambda _: begun[0].process.wait(20) == 255))
    stream = link.stream(HELLO)
    assert stream is begun[1] and echoed(stream) == b"there and back"
    link.close()


def test_a_changed_host_key_gets_no_stream(sshd, begun):
    server = sshd()
    server.run_sshd("B")
    with pytest.raises(HostKeyError):
        link_to(server)
    assert [each.process.returncode is not None for each in begun] == [True]


def test_none_is_begun_through_a_jump_host(sshd, begun):
    sshd("gate")
    link = link_to(sshd("inner", client="  ProxyJump gate"))
    assert begun == []
    assert echoed(link.stream(HELLO)) == b"there and back"
    link.close()


def test_the_first_upload_logs_in_twice_and_no_more(sshd, tmp_path):
    """Once for the requests, once for the parts: what was begun is what is used."""
    server = sshd()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one.txt").write_text("1")
    done = subprocess.run(
        [".venv/bin/fab", "upload", str(tmp_path / "set"), "--host", server.name, "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (server.folder / "log").read_text().count("Accepted publickey") == 2


def test_this_machine_needs_no_login():
    assert echoed(LocalLink().stream(HELLO)) == b"there and back"
