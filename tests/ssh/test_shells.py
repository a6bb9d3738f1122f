"""Boxes whose login is not a quiet POSIX shell: the agent answers right, in calls and in bulk."""

import json
import subprocess
import sys

import pytest

from deploy.effects.agent import Agent

pytestmark = pytest.mark.sshd

LOGINS = {
    "banner on stdout": {"banner": "'Welcome! @gpubox-answer'"},
    "fish": {"login": "fish"},
    "csh": {"login": "tcsh"},
    "zsh": {"login": "zsh"},
    "dash": {"login": "dash"},
    "one session at a time": {"extra": "MaxSessions 1"},
    "no sftp, no forwarding": {"extra": "AllowTcpForwarding no\nDisableForwarding yes"},
}


@pytest.mark.parametrize("options", LOGINS.values(), ids=LOGINS)
def test_the_agent_installs_itself_and_answers(sshd, options):
    server = sshd(**options)
    with server.desk().open("box") as box:
        found = box.call("facts")
        assert found["places"]["data"]["path"] == str(server.data)
        assert [p.name for p in (server.home / ".gpubox").glob("onbox-*")]
        stream = box.open("facts")
        stream.stdin.close()
        assert box.answer("facts", _ended(stream))["system"] == found["system"]


def _ended(stream):
    from deploy.effects.link import Done

    printed, complaint = stream.stdout.read(), stream.stderr.read()
    return Done(stream.wait(), printed, complaint)


def test_two_sessions_at_once_where_the_box_allows_one(sshd):
    server = sshd(extra="MaxSessions 1")
    link = server.link()
    first = link._channel("cat")
    second = link._channel("cat")
    for stream, word in ((first, b"one"), (second, b"two")):
        stream.stdin.write(word)
        stream.stdin.close()
    assert (first.stdout.read(), second.stdout.read()) == (b"one", b"two")
    link.close()


def test_a_home_that_cannot_be_written_is_said(sshd):
    server = sshd()
    (server.home / ".gpubox").write_text("in the way")
    from deploy.errors import BoxUnfit

    link = server.link()
    with pytest.raises(BoxUnfit, match="~/.gpubox can't be written"):
        Agent(link).call("facts")


def test_no_rsync_no_scp_no_sftp_is_no_matter(sshd, tmp_path):
    """Only sh and Python are on this box's PATH."""
    import shutil
    import sys

    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "mkdir", "mv", "rm", "wc"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").symlink_to(sys.executable)
    server = sshd(banner=f"; export PATH={tools}; true")
    with server.desk().open("box") as box:
        assert box.call("facts")["engine"]["present"] is False


PROGRAM = """
import json, os
out = os.environ["GPUBOX_OUTPUT"]
with open(os.path.join(os.environ["GPUBOX_INPUT"], "a b.bin"), "rb") as file:
    size = len(file.read())
with open(os.path.join(out, "progress.json"), "w") as file:
    json.dump({"schema": 1, "step": 1, "steps": 1}, file)
with open(os.path.join(out, "result.json"), "w") as file:
    json.dump({"schema": 1, "size": size}, file)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [LOGINS[name] for name in ("banner on stdout", "fish", "csh", "one session at a time")],
    ids=["banner on stdout", "fish", "csh", "one session at a time"],
)
def test_data_goes_up_and_results_come_home_whatever_the_login(sshd, tmp_path, options):
    """The whole life of a run, with bytes of every value in the data."""
    server = sshd(**options)
    (tmp_path / "set").mkdir(), (tmp_path / "code").mkdir()
    content = bytes(range(256)) * 1000
    (tmp_path / "set" / "a b.bin").write_bytes(content)
    (tmp_path / "set" / "it's").write_bytes(b"@gpubox-answer\n")
    (tmp_path / "code" / "train.py").write_text(PROGRAM)
    more = f'runner = "process"\ndevice = "cpu"\npython = "{sys.executable}"\n'
    more += f'[data.set]\npath = "{tmp_path}/set"\n[run]\ndata = "set"\n'
    more += f'command = ["python", "train.py"]\ncode = "{tmp_path}/code"\n'
    server.boxes.toml.write_text(server.boxes.toml.read_text() + more)
    fab("upload", "set"), fab("stage", "set")
    assert (server.input / "set" / "a b.bin").read_bytes() == content
    assert (server.input / "set" / "it's").read_bytes() == b"@gpubox-answer\n"
    fab("launch"), fab("fetch", "--logs-only", "--to", str(tmp_path / "home"))
    (result,) = (tmp_path / "home").glob("**/result.json")
    assert json.loads(result.read_text())["size"] == len(content)


def fab(*words):
    command = [sys.executable, "-m", "fabric", *words, "--host", "box"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
