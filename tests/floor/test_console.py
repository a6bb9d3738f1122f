"""What long actions say: one line with the time, all of it where asked for or where it failed."""

import pytest

from deploy import console
from deploy.console import Show

BUILDKIT = ["#1 [internal] load build definition", "#2 [wheels 2/2] RUN install", "#2 DONE 40.1s"]


def told(show, capsys, fail=False):
    """The lines on stderr of a build that says BUILDKIT, and may fail then."""
    try:
        with show.doing("building") as tell:
            for line in BUILDKIT:
                tell(line)
            if fail:
                raise ValueError
    except ValueError:
        pass
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_a_build_is_one_line_and_then_its_time(capsys):
    first, last = told(Show(), capsys)
    assert first == "› building" and last.startswith("building: ") and last.endswith("s")


def test_all_of_it_is_shown_with_debug_and_where_it_failed(capsys):
    assert told(Show(debug=True), capsys)[1:-1] == BUILDKIT
    assert told(Show(), capsys, fail=True)[1:] == BUILDKIT
    assert told(Show(debug=True), capsys, fail=True)[1:] == BUILDKIT  # and not twice


def test_without_a_terminal_a_line_now_and_then_says_that_it_goes_on(capsys, monkeypatch):
    monkeypatch.setattr(console, "PLAIN_EVERY", 0.0)
    lines = told(Show(), capsys)
    assert [line.split(": ", 1)[1] for line in lines[1:-1]] == BUILDKIT
    with Show(machine=True).progress("image", 3 << 20) as bar:
        bar.advance(1 << 20)
        bar.at(2 << 20)
    with Show().progress("files", 7, unit="files") as bar:
        bar.advance(5)
    captured = capsys.readouterr()
    said = [line.split(": ", 1)[1] for line in captured.err.splitlines()]
    assert said == ["image: 1.0 MiB of 3.0 MiB", "image: 2.0 MiB of 3.0 MiB", "files: 5 of 7"]
    assert captured.out == ""


def test_short_actions_say_nothing_of_the_kind(capsys):
    with Show().progress("image", 10) as bar:
        bar.advance(10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("unit", ["bytes", "files"])
def test_a_whole_that_is_not_known_is_not_named(capsys, monkeypatch, unit):
    monkeypatch.setattr(console, "PLAIN_EVERY", 0.0)
    with Show().progress("x", None, unit) as bar:
        bar.advance(2)
    assert " of " not in capsys.readouterr().err
