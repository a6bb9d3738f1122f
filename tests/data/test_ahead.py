"""What an upload begins before it knows more: the scan while the box is reached, the way for its parts."""

import os
import threading

import pytest

from deploy.console import Show
from deploy.effects import scan as scanning
from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink, finish
from deploy.effects.scan import Scanning, read_scan, scan
from deploy.effects.settings import laptop_folder
from deploy.errors import ConnectError, DataError, UsageError
from deploy.onbox.wire import find_answer
from deploy.plan.transfer import Totals, is_packing, steps
from deploy.verbs.desk import Desk
from deploy.verbs.upload import upload
from tests.data.conftest import small_files


def test_a_stream_that_was_begun_before_the_program_was_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    agent = Agent(LocalLink())
    early = agent.begin("facts")
    try:
        agent.install()
        late = agent.begin("facts")
        for stream in (early, late):
            agent.ask(stream)
            done = finish(stream, b"", None, "local")
            assert "ok" in find_answer(done.stdout), done
            stream.close()
    finally:
        early.close()


def test_a_stream_to_a_box_that_never_gets_the_program_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    agent = Agent(LocalLink())
    stream = agent.begin("facts")
    agent.ask(stream)
    assert finish(stream, b"", None, "local").code == 98
    stream.close()


class Unreachable(Desk):
    """Every box is too far away; `tried` are those that somebody wanted to reach."""

    tried = ()

    def open(self, name, ahead=""):
        self.tried = (*self.tried, name)
        raise ConnectError(f"{name}: no answer", "try again")


@pytest.mark.parametrize(
    "path, name, fault",
    [("missing", "", DataError), ("set", "a name", UsageError), ("notes.txt", "", DataError)],
)
def test_what_is_wrong_here_is_said_before_a_box_is_reached(
    tmp_path, monkeypatch, path, name, fault
):
    monkeypatch.chdir(tmp_path)
    small_files(tmp_path / "set", 3)
    (tmp_path / "notes.txt").write_text("no archive")
    desk = Unreachable(Show(machine=True), ["far"])
    with pytest.raises(fault):
        upload(desk, path, name, "", "")
    assert not desk.tried


def test_a_box_that_is_not_reached_does_not_wait_for_the_scan(tmp_path, monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    def long_scan(root, exclude, target, stop):
        begun.set()
        assert stop.wait(60)
        ended.set()
        raise scanning.Stopped

    monkeypatch.setattr(scanning, "scan", long_scan)
    small_files(tmp_path / "set", 3)
    with pytest.raises(ConnectError):
        upload(Unreachable(Show(machine=True), ["far"]), str(tmp_path / "set"), "set", "", "")
    assert begun.is_set() and ended.wait(10)
    (memory,) = (laptop_folder() / "uploads").iterdir()
    assert list(memory.iterdir()) == []


def test_a_scan_that_is_stopped_ends_and_says_so(tmp_path):
    small_files(tmp_path / "set", 50)
    stop = threading.Event()
    stop.set()
    with pytest.raises(scanning.Stopped):
        scan(str(tmp_path / "set"), (), tmp_path / "scan", 2, stop)


def test_what_a_scan_cannot_read_is_raised_where_its_survey_is_asked_for(tmp_path):
    (tmp_path / "set" / ".gpubox").mkdir(parents=True)
    with pytest.raises(DataError, match="a name that we need"):
        Scanning(str(tmp_path / "set"), (), tmp_path / "scan").survey()


@pytest.mark.parametrize("layout", ["auto", "packed", "files"])
def test_the_totals_of_a_new_set_are_those_of_its_steps(tmp_path, layout):
    """The survey's numbers come to the same as a look at each file."""
    root = tmp_path / "set"
    small_files(root, 120)
    (root / "empty").write_bytes(b"")
    os.truncate(os.open(root / "large", os.O_CREAT | os.O_WRONLY), 1 << 20)
    os.symlink("large", root / "link")
    survey = scan(str(root), (), tmp_path / "scan")
    packing = is_packing(layout, survey.small)
    one_by_one, at_once = Totals(), Totals()
    for step in steps(read_scan(tmp_path / "scan"), (), packing):
        one_by_one.add(step)
    at_once.add_all(survey.files, survey.small, survey.bytes, survey.small_bytes, packing)
    at_once.add_notes(survey.folders, survey.links)
    assert at_once == one_by_one
    assert at_once.parts() == one_by_one.parts()
