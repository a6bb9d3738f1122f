"""The keeper's loop in this process, with looks as the test writes them: what it does when."""

import time

import pytest

from deploy.onbox import armed as armed_files
from deploy.onbox.idle import ACTIVE, IDLE, UNKNOWN, Sample, Signal
from deploy.onbox.keeper import Keeper
from tests.keeper.local import QUICK, LocalBox

LETTERS = {"a": ACTIVE, "i": IDLE, "u": UNKNOWN}
POLL = 0.2


@pytest.fixture
def keep(own_home, tmp_path):
    """`keep("iiia")` makes a keeper take these looks, one every POLL seconds, and returns it."""
    (tmp_path / "box").mkdir()
    box = LocalBox(own_home, tmp_path / "box")
    made = []

    def run(looks, stop_after=0.5, **more):
        if not made:
            command = [box.stop_script(more.pop("script", "exit 1"))]
            request = box.request(command, rule=QUICK, stop={"pauses": [60.0]}, **more)
            request["folders"] = box.agent.folders
            request["rule"].update(poll=POLL, stop_after=stop_after, remind_after=stop_after / 3)
            armed_files.write_armed(request)
            made.append(Keeper(request))
            made[0].look.close()
        keeper = made[0]
        for letter in looks:
            signals = {"test": Signal(LETTERS[letter], letter)}
            keeper.look.take = lambda epoch, signals=signals: Sample(
                time.monotonic(), time.time(), epoch, signals
            )
            keeper.tick()
            time.sleep(POLL)
        return keeper

    run.box = box
    return run


def test_a_look_that_fails_during_a_stop_does_not_call_it_off(keep):
    keeper = keep("iiiiii")
    assert keep.box.calls() == 1 and keeper.stop.tries == 1
    keep("u")
    assert keeper.stop is not None and keep.box.calls() == 1
    keep("i")
    assert keeper.stop.tries == 1  # still waiting for its next try
    keep("a")
    assert keeper.stop is None and "called off" in keep.box.log()


def test_the_sign_of_life_after_the_runs_were_stopped_calls_the_stop_off(keep, monkeypatch):
    from deploy.onbox import stopping_task

    keeper = keep("iii", stop_after=10.0)

    def comes_back(*_):
        signals = {"test": Signal(ACTIVE, "typing")}
        keeper.look.take = lambda epoch: Sample(time.monotonic(), time.time(), epoch, signals)
        return []

    monkeypatch.setattr(stopping_task, "stop_runs", comes_back)
    keeper.rule = keeper.rule._replace(stop_after=0.5, remind_after=0.1)
    keep("i")
    assert keeper.stop is not None and keeper.stop.tries == 0
    keep("a")
    assert keeper.stop is None and keep.box.calls() == 0


def test_each_reminder_is_sent_once_and_again_after_a_new_count(keep):
    keep("iiiii", stop_after=2.0)
    assert keep.box.log().count("stops in") == 1
    keep("ai")
    keep("iiii")
    assert keep.box.log().count("stops in") == 2


def test_a_shared_server_is_never_switched_off(keep):
    keeper = keep("iiiiiiii", shared=True)
    assert keep.box.calls() == 0 and keeper.stop is not None and keeper.stop.tries == 0
    keep("a")
    assert keeper.stop is None and "called off" not in keep.box.log()
