"""What a deploy decides: runner, device, image, and whether a run starts, goes on or is there."""

import pytest

from deploy.errors import EngineError, GpuError, ImageError
from deploy.plan.config import Box, RunRule
from deploy.plan.deploy import choose_start, choose_way
from deploy.plan.image import must_be_there, plan_image

ANSWERS = {"present": True, "answers": True, "version": "26.1"}
SILENT = {"present": True, "answers": False, "why": "the Docker daemon does not answer this user"}
ABSENT = {"present": False, "answers": False, "why": "no docker program on this box"}
CARD = [{"uuid": "GPU-1"}]

# box settings, engine, is the box a container, cards, --device → runner, device
WAYS = [
    ({}, ANSWERS, False, CARD, "", "docker", "gpu"),
    ({}, ANSWERS, False, [], "", "docker", "cpu"),
    ({}, ANSWERS, False, CARD, "cpu", "docker", "cpu"),
    ({}, ABSENT, True, CARD, "", "process", "gpu"),
    ({}, ABSENT, False, [], "", "process", "cpu"),
    ({}, SILENT, True, [], "", "process", "cpu"),
    ({"runner": "process"}, ANSWERS, False, CARD, "", "process", "gpu"),
    ({"device": "cpu"}, ANSWERS, False, CARD, "", "docker", "cpu"),
    ({"device": "gpu"}, ANSWERS, False, CARD, "", "docker", "gpu"),
]


def facts(engine, container, cards):
    return {"engine": engine, "container": container, "gpus": {"cards": cards}}


@pytest.mark.parametrize("settings,engine,container,cards,device,runner,used", WAYS)
def test_the_way_follows_from_what_is_asked_and_what_is_there(
    settings, engine, container, cards, device, runner, used
):
    way = choose_way("b", Box(**settings), RunRule(), facts(engine, container, cards), device)
    assert (way.runner, way.device) == (runner, used)


def test_a_gpu_that_is_asked_for_is_never_a_cpu():
    with pytest.raises(GpuError, match="asked for and the box shows none"):
        choose_way("b", Box(), RunRule(), facts(ANSWERS, False, []), "gpu")
    with pytest.raises(GpuError):
        choose_way("b", Box(device="gpu"), RunRule(), facts(ABSENT, True, []), "")


@pytest.mark.parametrize("settings,engine", [({"runner": "docker"}, ABSENT), ({}, SILENT)])
def test_an_engine_that_does_not_answer_is_said(settings, engine):
    with pytest.raises(EngineError, match=engine["why"]):
        choose_way("b", Box(**settings), RunRule(), facts(engine, False, []), "")


def run(number, state, **other):
    about = {"fingerprint": "f", "data": {"version": "v"}, "image": "i", **other}
    return {"id": f"run-{number}", "run": about, "state": {"state": state}}


STARTS = [
    ([], "new", ""),
    ([run(1, "stopped")], "resume", "run-1"),
    ([run(1, "interrupted")], "resume", "run-1"),
    ([run(1, "finished")], "new", ""),
    ([run(1, "failed")], "new", ""),
    ([run(1, "stopped"), run(2, "failed")], "new", ""),
    ([run(1, "stopped"), run(2, "finished")], "new", ""),
    ([run(1, "finished"), run(2, "stopped")], "resume", "run-2"),
    ([run(1, "running")], "attach", "run-1"),
    ([run(1, "queued")], "attach", "run-1"),
    ([run(1, "stopped", fingerprint="other")], "new", ""),
    ([run(1, "stopped", data={"version": "older"})], "new", ""),
    ([run(1, "stopped", image="other")], "new", ""),
    ([run(1, "stopped", data=None)], "new", ""),
    ([{"id": "run-1", "damaged": "no state"}], "new", ""),
]


@pytest.mark.parametrize("runs,action,which", STARTS)
def test_only_the_very_same_run_goes_on(runs, action, which):
    start = choose_start(runs, "f", "v", "i", new=False)
    assert (start.action, start.run) == (action, which)
    assert start.why


def test_a_new_one_can_be_asked_for():
    assert choose_start([run(1, "stopped")], "f", "v", "i", new=True).action == "new"


AMD, ARM = {"architecture": "amd64"}, {"architecture": "arm64"}
THERE, OLD, NOT = {"id": "x", "inputs": "d"}, {"id": "x", "inputs": "e"}, {"id": "", "inputs": ""}

IMAGES = [
    (THERE, None, "x86_64", "keep"),
    (THERE, AMD, "x86_64", "keep"),
    (OLD, AMD, "x86_64", "ship"),
    (NOT, AMD, "x86_64", "ship"),
    (NOT, None, "x86_64", "build"),
    (NOT, ARM, "x86_64", "build"),
    (NOT, ARM, "aarch64", "ship"),
]


@pytest.mark.parametrize("there,engine,machine,action", IMAGES)
def test_how_the_image_gets_there(there, engine, machine, action):
    bring = plan_image("b", there, "d", engine, machine)
    assert bring.action == action
    assert bring.why


def test_the_users_own_image_must_be_there():
    assert must_be_there("b", "mine", THERE) == "x"
    with pytest.raises(ImageError, match="mine"):
        must_be_there("b", "mine", NOT)
