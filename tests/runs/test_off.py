"""What stays readable when a box is off, and what a box can't do to the terminal."""

import io
import threading
import time

import pytest
from rich.console import Console

from deploy.console import Show
from deploy.errors import ConnectError
from deploy.verbs.desk import Desk
from deploy.verbs.logs import Printer, follow_run, logs
from deploy.verbs.status import status


@pytest.fixture
def screen():
    """A Show whose stdout is text that a test can read."""
    show = Show()
    show._answers = Console(file=io.StringIO(), highlight=False, soft_wrap=True, width=80)
    return show


def printed(show):
    return show._answers.file.getvalue()


@pytest.mark.sshd
@pytest.mark.slow
def test_the_last_status_and_logs_are_kept_at_home(box, sshd, screen):
    server = sshd()
    desk = Desk(screen, ["box"])
    with desk.open("box") as agent:
        box.agent = agent
        ask = box.ask("print('from the box', flush=True); progress(1, 1)")
        run = agent.call("launch", **ask)["id"]
        while agent.call("status", run=run)["runs"][0]["state"]["state"] != "finished":
            pass
        box.agent = None
    box.end = lambda: None
    first = status(desk)[0]
    assert first["answered"] and first["fault"] == "" and first["runs"][0]["id"] == run
    assert "from the box" in logs(desk)[0]["text"]
    server.stop()
    again = status(Desk(screen, ["box"]))[0]
    assert not again["answered"] and again["fault"] and again["runs"][0]["id"] == run
    assert first["now"] - 60 < again["at"] < time.time() and set(again) == set(first)
    assert "from the box" in logs(Desk(screen, ["box"]))[0]["text"]
    with pytest.raises(ConnectError):
        logs(Desk(screen, ["box"]), run="20261130-0930-other-0000")


def test_control_characters_can_not_drive_the_terminal(screen):
    printer = Printer(Desk(screen, ["box"]))
    hostile = "\x1b]0;title\x07\x1b[2J red\u202eevil [bold]x[/bold]\r\nbar 1\rbar 2\n"
    printer.take({"at": 0, "next": 99, "text": hostile})
    text = printed(screen)
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert "title" not in text and "[2J" not in text  # sequences are left out whole
    assert "\\x202eevil [bold]x[/bold]" in text
    assert text.splitlines()[1:] == ["bar 1", "bar 2"]


def test_lines_are_put_together_and_the_place_is_known(screen):
    printer = Printer(Desk(screen, ["box"]))
    printer.take({"at": 0, "next": 5, "text": "one\ntw"})
    assert printed(screen) == "one\n"
    printer.take({"at": 5, "next": 9, "text": "o\nthr"})
    printer.finish()
    assert printed(screen) == "one\ntwo\nthr\n" and printer.next == 9


@pytest.mark.sshd
@pytest.mark.slow
def test_following_goes_on_where_it_was_when_links_break(box, sshd, screen):
    server = sshd()
    program = """
    progress(1, 2)
    time.sleep(3)
    for number in range(20):
        print("line", number, flush=True)
        time.sleep(0.4)
    """
    desk = Desk(screen, ["box"])
    with desk.open("box") as agent:
        run = agent.call("launch", **box.ask(program))["id"]
    box.end = lambda: None
    answer = []
    thread = threading.Thread(target=lambda: answer.append(follow_run(desk, "box", run)))
    thread.start()
    time.sleep(1.5)
    server.cut()  # before the first line
    server.stop()
    time.sleep(1)
    server.run_sshd()
    while "line 5\n" not in printed(screen):
        time.sleep(0.05)
    server.cut()  # and in the middle
    thread.join(120)
    assert answer == [{"id": run, "state": "finished"}]
    assert printed(screen).splitlines() == [f"line {number}" for number in range(20)]
