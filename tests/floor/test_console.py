"""What long actions say: one line with the time, all of it where asked for or where it failed."""

import io
import re
import time

import pytest
from rich.console import Console

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


def test_a_bar_of_files_shows_bytes_files_rate_time_left_and_which_on_one_line(monkeypatch):
    out = io.StringIO()
    show = Show()
    show._notices = Console(file=out, force_terminal=True, width=80)
    with show.progress("pictures", 464 << 20, files=100_000) as bar:
        for step in range(4):
            bar.at(step * (40 << 20), detail="class123/image_012345.png", files=step * 9000)
            time.sleep(0.15)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n").splitlines()
    last = [line for line in drawn if line.strip()][-1]
    assert all(len(line) <= 80 for line in drawn) and last.startswith("pictures")
    for part in ("120.0/464.0 MiB", "MB/s", "27,000/100,000 files", "5.png"):
        assert part in last
    assert re.search(r"\d\d:\d\d", last)


def test_without_a_terminal_files_are_counted_too(capsys, monkeypatch):
    monkeypatch.setattr(console, "PLAIN_EVERY", 0.0)
    with Show().progress("set", 2 << 20, files=20) as bar:
        bar.at(1 << 20, files=7)
    assert "set: 1.0 MiB of 2.0 MiB, 7/20 files" in capsys.readouterr().err
