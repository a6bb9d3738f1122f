"""Links that freeze and die under a real command: noticed in time, gone on with, nothing done twice."""

import concurrent.futures
import time

import pytest

from deploy.effects.agent import Agent
from deploy.errors import BoxUnfit, LinkLost

pytestmark = pytest.mark.sshd
DEADLINE = 30  # seconds; what is promised


def both_ways(link, command):
    """What a command prints by way of the control connection and by way of the bulk stream."""
    control = link.run(command)
    stream = link.stream(command)
    stream.stdin.close()
    bulk = stream.stdout.read()
    assert (control.code, stream.wait()) == (0, 0)
    stream.close()
    return control.stdout, bulk


def test_both_ways_reach_the_box(sshd):
    server = sshd()
    link = server.link()
    assert both_ways(link, 'echo "$HOME"') == (f"{server.home}\n".encode(),) * 2
    link.close()


def test_bytes_of_every_value_and_the_exit_code_come_through(sshd):
    server = sshd()
    everything = bytes(range(256)) * 4096
    done = server.link().run("cat; echo complaint >&2; exit 7", everything)
    assert done == (7, everything, b"complaint\n")


def test_a_command_that_a_signal_ends_is_not_taken_for_a_dead_link(sshd):
    server = sshd()
    link = server.link()
    assert link.run("kill -9 $$").code == 137
    link.run("true")
    assert connections_made(server) == 1


def connections_made(server):
    return (server.folder / "log").read_text().count("Accepted publickey")


def wait_for(path):
    deadline = time.monotonic() + 20
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.05)


def when_it_runs(server, act, call):
    """Call in a thread a command that makes `started` on the box; act once it is there."""
    started = server.home / "started"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        future = pool.submit(call, f"echo x >>{started}; sleep 600")
        wait_for(started)
        act()
        return future.exception(timeout=DEADLINE), started.read_text().count("x")


def test_a_link_that_dies_under_a_command_is_lost_and_the_command_not_repeated(sshd):
    server = sshd()
    link = server.link()
    fault, times = when_it_runs(server, server.cut, link.run)
    assert isinstance(fault, LinkLost) and "the same command goes on" in fault.hint
    assert times == 1
    assert link.run("echo again").stdout == b"again\n"  # the next one opens it again
    assert times == (server.home / "started").read_text().count("x")


def test_a_link_that_died_between_two_commands_is_opened_again(sshd):
    server = sshd()
    link = server.link()
    link.run("true")
    server.cut()
    while link.transport.is_active():  # the kernel tells it at once, a busy machine later
        time.sleep(0.01)
    assert link.run("echo again").stdout == b"again\n"
    assert connections_made(server) == 2


class DyingLink:
    """A link that dies once, after its command was sent."""

    name = "box"

    def __init__(self, link):
        self.link, self.sent, self.alive = link, 0, False

    def run(self, command, stdin=b"", on_line=None):
        self.sent += 1
        if not self.alive:
            self.alive = True
            raise LinkLost("box: the connection died", "")
        return self.link.run(command, stdin, on_line)


def test_only_a_repeatable_request_is_sent_again(sshd):
    server = sshd()
    folders = {"data": str(server.data), "input": str(server.input)}
    dying = DyingLink(server.link())
    with pytest.raises(LinkLost):
        Agent(dying, folders).call("facts")
    assert dying.sent == 1
    dying = DyingLink(server.link())
    assert Agent(dying, folders).call("facts", repeatable=True)["cpus"] > 0


def test_a_verb_killed_for_its_memory_is_not_called_a_dead_link(sshd):
    server = sshd()
    link = server.link()
    Agent(link).install()
    killer = DyingLink(link)
    killer.run = lambda command, *rest: link.run("kill -9 $$")
    with pytest.raises(BoxUnfit, match="was killed on the box"):
        Agent(killer).call("facts")


def read_to_the_end(stream):
    stream.stdout.read()
    return stream.wait()


def write_for_ever(stream):
    try:
        while True:
            stream.stdin.write(b"x" * 65536)
    except OSError:
        return stream.wait()


@pytest.mark.slow
def test_a_frozen_link_is_noticed_on_every_path_within_the_deadline(sshd):
    """The sshd processes are stopped while: a command waits, and four streams read or write."""
    server = sshd()
    link = server.link()
    streams = [link.stream("sleep 600"), link.stream("cat >/dev/null; sleep 600")]
    own = [link._channel("sleep 600"), link._channel("cat >/dev/null; sleep 600")]
    for stream in (*streams, *own):
        stream.stdin.write(b"x")
        stream.stdin.flush()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        waiting = pool.submit(link.run, f"echo x >{server.home}/started; sleep 600")
        wait_for(server.home / "started")
        reading = [pool.submit(read_to_the_end, each) for each in (streams[0], own[0])]
        writing = [pool.submit(write_for_ever, each) for each in (streams[1], own[1])]
        time.sleep(0.5)
        server.freeze()
        frozen = time.monotonic()
        codes = [future.result(DEADLINE + 5) for future in (*reading, *writing)]
        fault = waiting.exception(DEADLINE)
        assert time.monotonic() - frozen < DEADLINE
    assert codes == [255, -1, 255, -1]
    assert isinstance(fault, LinkLost) and "nothing heard for" in fault.message
    server.thaw()
    assert link.run("echo again").stdout == b"again\n"


@pytest.mark.slow
def test_a_box_that_freezes_before_it_says_hello_costs_the_connect_deadline(sshd):
    import os
    import signal

    from deploy.errors import ConnectError

    server = sshd()
    os.kill(server._process.pid, signal.SIGSTOP)  # the kernel still takes the connection
    try:
        with pytest.raises(ConnectError, match="no SSH at"):
            server.link()
    finally:
        os.kill(server._process.pid, signal.SIGCONT)
