"""GPUs: what a run may ask for, what it gets, and that nobody overtakes in the queue."""

import pytest

from deploy.onbox.queueing import Ask, choose_gpus, parse_gpus, plan_queue

CARDS = [{"uuid": f"GPU-{c}", "index": str(i), "name": "T4"} for i, c in enumerate("abc")]


@pytest.mark.parametrize(
    "text,ask",
    [
        ("all", Ask(-1)),
        ("none", Ask(0)),
        ("0", Ask(0)),
        ("", Ask(0)),
        ("2", Ask(2)),
        ("0,2", Ask(2, ("0", "2"))),
        ("gpu1", Ask(1, ("1",))),
        ("gpu0, gpu2", Ask(2, ("0", "2"))),
        ("GPU-1f,GPU-2e", Ask(2, ("GPU-1f", "GPU-2e"))),
        ("1,1", Ask(1, ("1",))),
    ],
)
def test_what_can_be_asked_for(text, ask):
    assert parse_gpus(text) == ask


@pytest.mark.parametrize("text", ["half", "-1", "1.5", "gpu", "0;2", "$(reboot)"])
def test_what_can_not(text):
    with pytest.raises(ValueError, match="expected"):
        parse_gpus(text)


@pytest.mark.parametrize(
    "ask,taken,gpus,why",
    [
        (Ask(0), {}, (), "no GPU"),
        (Ask(-1), {}, ("GPU-a", "GPU-b", "GPU-c"), "free"),
        (Ask(-1), {"GPU-b": "anna"}, None, "GPU 1 is used by anna"),
        (Ask(1), {"GPU-a": "anna"}, ("GPU-b",), "free"),
        (Ask(3), {"GPU-a": "anna"}, None, "2 of 3 GPUs free; GPU 0 is used by anna"),
        (Ask(4), {}, None, "asks for 4 GPUs, this box has 3"),
        (Ask(1, ("2",)), {}, ("GPU-c",), "free"),
        (Ask(1, ("2",)), {"GPU-c": "anna"}, None, "used by anna"),
        (Ask(1, ("7",)), {}, None, "no GPU 7"),
        (Ask(1, ("GPU-b",)), {"GPU-a": "anna"}, ("GPU-b",), "free"),
    ],
)
def test_who_gets_which(ask, taken, gpus, why):
    verdict = choose_gpus(ask, CARDS, taken)
    assert verdict.gpus == gpus
    assert why in verdict.why


def test_nobody_overtakes():
    plan = dict(plan_queue([("r1", Ask(3)), ("r2", Ask(1))], CARDS, {"GPU-a": "anna"}))
    assert plan["r1"].gpus is None
    assert plan["r2"].gpus is None and "r1, which is before it" in plan["r2"].why


def test_a_run_for_another_card_need_not_wait():
    waiting = [("r1", Ask(1, ("0",))), ("r2", Ask(1, ("2",))), ("r3", Ask(1))]
    plan = dict(plan_queue(waiting, CARDS, {"GPU-a": "anna"}))
    assert plan["r1"].gpus is None
    assert plan["r2"].gpus == ("GPU-c",)
    assert plan["r3"].gpus == ("GPU-b",)


def test_an_ask_that_can_never_be_met_blocks_nobody():
    plan = dict(plan_queue([("r1", Ask(9)), ("r2", Ask(-1))], CARDS, {}))
    assert plan["r2"].gpus is not None
