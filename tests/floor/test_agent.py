"""The program on the box: one zipapp by its hash, put there once, its refusals our own errors."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.effects import agent as agents
from deploy.effects import bundle
from deploy.effects.agent import Agent
from deploy.effects.link import Done, LocalLink
from deploy.errors import BoxUnfit, EngineError, KitError, NoSuchRun

OLD_PYTHON = Path("~/.pyenv/versions/3.8.18/bin/python3.8").expanduser()


@pytest.fixture
def folders(tmp_path):
    return {"data": str(tmp_path / "data"), "input": str(tmp_path / "input")}


def test_the_same_sources_give_the_same_zipapp():
    first = bundle.onbox_bundle()
    bundle.onbox_bundle.cache_clear()
    assert bundle.onbox_bundle() == first


def test_it_is_installed_once_and_then_found(own_home, folders):
    box = Agent(LocalLink(), folders)
    box.call("facts")
    (program,) = (own_home / ".gpubox").glob("onbox-*.pyz")
    written = program.stat().st_mtime_ns
    box.call("facts")
    assert program.stat().st_mtime_ns == written
    assert program.stat().st_mode & 0o777 == 0o600
    assert not list((own_home / ".gpubox").glob(".new-*"))


def test_another_version_is_laid_beside_never_over(own_home, folders, monkeypatch):
    Agent(LocalLink(), folders).call("facts")
    name, content = bundle.onbox_bundle()
    newer = bundle.Bundle("onbox-ffffffffffffffff.pyz", content)
    monkeypatch.setattr(agents, "onbox_bundle", lambda: newer)
    Agent(LocalLink(), folders).call("facts")
    assert {p.name for p in (own_home / ".gpubox").glob("*.pyz")} == {name, newer.name}


def test_a_torn_upload_is_not_installed(own_home):
    class Torn(LocalLink):
        def run(self, command, stdin=b"", on_line=None):
            return super().run(command, stdin[: len(stdin) // 2], on_line)

    with pytest.raises(BoxUnfit):
        Agent(Torn()).install()
    assert not list((own_home / ".gpubox").iterdir())


def test_a_box_without_python_is_told_so(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    for name in ("sh", "cat", "mkdir"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(agents, "PYTHONS", "python3 python")
    with pytest.raises(BoxUnfit, match="no Python 3.8 or newer"):
        Agent(LocalLink()).call("facts")


def test_a_python_that_is_too_old_is_passed_over_for_one_that_is_not(
    tmp_path, monkeypatch, folders
):
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Agent(LocalLink(), folders).call("facts")["python"]["path"] == str(tmp_path / "python")


def test_a_refusal_of_the_box_is_raised_as_its_own_kind():
    box = Agent(LocalLink())
    error = {"kind": "EngineError", "message": "no engine", "hint": "start it"}
    answer = b"@gpubox-answer\n" + json.dumps({"error": error}).encode() + b"\n@gpubox-end\n"
    with pytest.raises(EngineError, match="local: no engine") as caught:
        box.answer("facts", Done(1, answer, b""))
    assert caught.value.hint == "start it"


def test_a_fault_of_the_box_brings_its_traceback_home(folders):
    with pytest.raises(KitError, match="on the box, in stage: ") as caught:
        Agent(LocalLink(), {**folders, "data": 7}).call("stage", name="x")
    assert "Traceback" in caught.value.on_the_box


def test_a_folder_that_was_named_is_used_or_refused_never_replaced(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BoxUnfit, match="not there, or not writable") as caught:
        Agent(LocalLink(), {"data": str(tmp_path / "file" / "data")}).call("facts")
    assert "boxes.NAME.data" in caught.value.hint


@pytest.mark.skipif(not OLD_PYTHON.is_file(), reason="no Python 3.8 on this machine")
def test_the_oldest_python_that_is_promised_imports_every_module(tmp_path):
    program = tmp_path / "onbox.pyz"
    program.write_bytes(bundle.onbox_bundle().content)
    script = (
        "import sys, zipfile, importlib; p = sys.argv[1]; sys.path.insert(0, p)\n"
        "names = [n for n in zipfile.ZipFile(p).namelist() if n.startswith('onbox/')]\n"
        "for n in names:\n"
        "    if n.endswith('.py') and '__main__' not in n:\n"
        "        importlib.import_module(n[:-3].replace('/', '.'))\n"
        "print(len(names))"
    )
    done = subprocess.run(
        [str(OLD_PYTHON), "-c", script, str(program)], capture_output=True, text=True
    )
    assert done.returncode == 0 and int(done.stdout) > 10, done.stderr


@pytest.mark.skipif(not OLD_PYTHON.is_file(), reason="no Python 3.8 on this machine")
def test_the_oldest_python_that_is_promised_answers(tmp_path, monkeypatch, folders):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(OLD_PYTHON)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    box = Agent(LocalLink(), folders)
    assert box.call("facts")["python"]["version"].startswith("3.8")
    assert box.call("survey")["system"]["id"]


def test_it_is_compiled_as_it_is_installed_and_another_python_can_still_run_it(
    own_home, folders, monkeypatch
):
    box = Agent(LocalLink(), folders)
    box.call("facts")
    (program,) = (own_home / ".gpubox").glob("onbox-*.pyz")
    noted = (own_home / ".gpubox" / "python").read_text().strip()
    assert box.call("facts")["python"]["path"] == noted
    done = subprocess.run(
        [noted, "-c", "import onbox.launch as m; print(m.__file__)"],
        env={**os.environ, "PYTHONPATH": str(program)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == f"{program}/onbox/launch.pyc", done.stderr
    if OLD_PYTHON.is_file():
        (own_home / ".gpubox" / "python").write_text(f"{OLD_PYTHON}\n")
        assert box.call("facts")["python"]["version"].startswith("3.8")


def test_a_noted_python_that_is_gone_is_looked_for_again(own_home, folders):
    box = Agent(LocalLink(), folders)
    box.call("facts")
    (own_home / ".gpubox" / "python").write_text("/nowhere/python\n")
    assert Path(box.call("facts")["python"]["path"]).exists()


class Counting(LocalLink):
    requests = 0

    def run(self, command, stdin=b"", on_line=None):
        self.requests += 1
        return super().run(command, stdin, on_line)


def test_what_is_asked_ahead_takes_no_request_of_its_own(own_home, folders):
    link = Counting()
    box = Agent(link, folders)
    box.call("facts")
    link.requests = 0
    ahead = [("data_state", {"name": "x"}), ("stop", {"run": "20261130-0930-x-0000"})]
    box.call("facts", ahead=ahead)
    assert link.requests == 1
    assert box.call("data_state", name="x")["id"] == ""
    assert link.requests == 1
    box.call("data_state", name="x")  # an answer holds once: what follows may have changed it
    assert link.requests == 2
    with pytest.raises(NoSuchRun):  # a refusal is met by whoever asks in earnest
        box.call("stop", run="20261130-0930-x-0000")
    assert link.requests == 3


def test_a_short_question_goes_with_the_command_and_all_else_as_its_input(own_home, folders):
    """A round trip less: sshd takes input only after the command has come."""
    sent, link = [], LocalLink()
    run, link.run = link.run, lambda *words: sent.append(words[:2]) or run(*words)
    box = Agent(link, folders)
    box.call("facts")
    sent.clear()
    with pytest.raises(NoSuchRun, match=r"it's; a \$\(name\)"):
        box.call("status", run="it's; a $(name)")
    assert [line for _, line in sent] == [b""] and "name" not in sent[0][0]
    box.call("status", run="", note="x" * 4000)
    box.also["lock"] = {"me": {"token": "t0k3n"}, "dead": [], "wait": 0}
    box.call("status", run="")
    box.call("unlock")
    assert [len(line) > 2 for _, line in sent] == [False, True, True, True]
    assert not any("t0k3n" in command for command, _ in sent)
