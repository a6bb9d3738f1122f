"""One command of a bootstrap on the box: no shell, its lines as they come, its failure in one line."""

import io
import json

import pytest

from deploy.onbox import perform, reach
from deploy.onbox.refusal import Refusal
from deploy.onbox.wire import EVENT, Wire


@pytest.fixture
def wire():
    return Wire(io.BytesIO(), io.BytesIO(), io.BytesIO())


def told(wire):
    lines = wire._stderr.getvalue().splitlines()
    return [json.loads(line[len(EVENT) :])["line"] for line in lines]


def test_words_reach_the_program_as_they_are(wire, tmp_path):
    name = "$(touch PWN); 'x' \\ *"
    answer = perform.perform({"argv": ["printf", "%s\\n", name, "two"]}, wire)
    assert answer["lines"] == [name, "two"] == told(wire)


def test_what_it_reads_is_given_and_a_failure_names_its_last_line(wire):
    script = "cat; echo wrong >&2; exit 4"
    with pytest.raises(Refusal, match="ended with 4: wrong") as caught:
        perform.perform({"argv": ["sh", "-c", script], "stdin": "given\n"}, wire)
    assert caught.value.kind == "BoxUnfit"
    assert told(wire) == ["given", "wrong"]


def test_a_command_that_hangs_is_ended(wire):
    with pytest.raises(Refusal, match="ended with -9"):
        perform.perform({"argv": ["sleep", "60"], "seconds": 0.2}, wire)


def test_only_the_last_lines_are_kept(wire):
    answer = perform.perform({"argv": ["seq", "100"]}, wire)
    assert answer["lines"] == [str(number) for number in range(71, 101)]


def test_root_is_by_sudo_that_never_asks(monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 1000)
    assert perform.as_root(["apt-get", "update"])[:3] == ["sudo", "-n", "--"]
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert perform.as_root(["apt-get", "update"]) == ["apt-get", "update"]


def test_apts_lock_is_waited_for_and_its_holder_named_once(wire, monkeypatch):
    seen = iter([["unattended-upgr (812)"], ["unattended-upgr (812)"], []])
    monkeypatch.setattr(perform, "lock_holders", lambda: next(seen))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    perform.wait_for_locks(wire)
    assert told(wire) == ["waiting for apt's lock: unattended-upgr (812)"]


def test_a_lock_that_never_comes_free_is_an_error_with_its_holder(wire, monkeypatch):
    monkeypatch.setattr(perform, "lock_holders", lambda: ["apt (7)"])
    monkeypatch.setattr(perform, "LOCK_SECONDS", 0)
    with pytest.raises(Refusal, match="locked by apt .7.") as caught:
        perform.wait_for_locks(wire)
    assert caught.value.kind == "Busy"


@pytest.mark.parametrize(
    "text,shown",
    [
        ("https://user:pass@host/simple", "https://host/simple"),
        ("Err:1 http://token@host/a  404", "Err:1 http://host/a  404"),
        ("https://host/a@b", "https://host/a@b"),
        ("mail me@host", "mail me@host"),
    ],
)
def test_a_login_inside_an_address_is_never_shown(text, shown):
    assert reach.without_login(text) == shown
