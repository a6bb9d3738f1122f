"""Several workers: what is refused before anything starts, which addresses, whose part is what."""

import json

import pytest

from deploy.errors import BoxUnfit, UsageError
from deploy.onbox.compose import Mounts, compose_run
from deploy.onbox.endings import Facts, why_ended
from deploy.onbox.tending import PAUSES, resume_verdict
from deploy.onbox.workers import addresses, is_private, moved, tf_config
from deploy.plan.run import ID
from deploy.plan.workers import (
    Member,
    all_run,
    candidates,
    check_alike,
    choose_addresses,
    member_id,
    parts,
    patience,
    worker_names,
)
from deploy.verbs.workers import member

ALIKE = {
    "runner": "docker",
    "device": "gpu",
    "version": "v1",
    "image": "sha256:1",
    "fingerprint": "f",
}


@pytest.mark.parametrize(
    "asked, configured, names",
    [
        ("a,b", [], ["a", "b"]),
        (" a , b ,", [], ["a", "b"]),
        ("", ["c", "d"], ["c", "d"]),
        ("a,b", ["c", "d"], ["a", "b"]),
        ("", [], []),
    ],
)
def test_which_boxes(asked, configured, names):
    assert worker_names(asked, configured) == names


@pytest.mark.parametrize("asked, said", [("a", "one worker is no group"), ("a,b,a", "twice")])
def test_what_is_no_group(asked, said):
    with pytest.raises(UsageError, match=said):
        worker_names(asked, [])


@pytest.mark.parametrize(
    "key, said",
    [
        ("runner", "run differently"),
        ("device", "train on different devices"),
        ("version", "have different versions of the data set"),
        ("image", "have different images"),
        ("fingerprint", "would start different programs"),
    ],
)
def test_boxes_that_are_not_alike_are_named(key, said):
    check_alike([Member("a", **ALIKE), Member("b", **ALIKE)])
    with pytest.raises(BoxUnfit, match=said) as no:
        check_alike([Member("a", **ALIKE), Member("b", **{**ALIKE, key: "other"})])
    assert "b: other" in no.value.message


@pytest.mark.parametrize(
    "address, private",
    [
        ("10.0.0.4", True),
        ("172.31.9.9", True),
        ("192.168.1.5", True),
        ("100.64.3.2", True),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("8.8.8.8", False),
        ("172.32.0.1", False),
    ],
)
def test_private_addresses(address, private):
    assert is_private(address) is private


def test_a_box_with_public_addresses_only_is_refused_with_the_reason():
    with pytest.raises(BoxUnfit) as no:
        candidates(
            {
                "a": {"private": ["10.0.0.1"], "public": []},
                "b": {"private": [], "public": ["8.8.8.8"]},
            }
        )
    assert "b has no private address (only 8.8.8.8)" in no.value.message
    assert "not encrypted" in no.value.message and "tunnel" in no.value.hint


def test_the_first_address_that_all_others_reach_is_taken():
    offered = {"a": ["172.17.0.1", "10.0.0.1"], "b": ["172.17.0.1", "10.0.0.2"], "c": ["10.0.0.3"]}
    reached = {
        "a": {"b": ["10.0.0.2"], "c": ["10.0.0.3"]},
        "b": {"a": ["10.0.0.1"], "c": ["10.0.0.3"]},
        "c": {"a": ["10.0.0.1"], "b": ["10.0.0.2"]},
    }
    chosen = choose_addresses(offered, reached, 23456)
    assert chosen == {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
    reached["c"]["b"] = []
    with pytest.raises(BoxUnfit, match="b can't be reached from c at port 23456") as no:
        choose_addresses(offered, reached, 23456)
    assert "open port 23456" in no.value.hint


def test_each_member_has_an_id_of_its_own_that_is_one():
    chief = "20261130-0930-cnn-3f9a"
    assert [member_id(chief, i) for i in range(3)] == [
        chief,
        "20261130-0930-cnn-w1-3f9a",
        "20261130-0930-cnn-w2-3f9a",
    ]
    long = f"20261130-0930-{'x' * 30}-3f9a"
    assert all(ID.fullmatch(member_id(long, i)) for i in (0, 1, 99))


def test_tf_config_and_host_networking_reach_the_container():
    one, two = parts(
        ["a", "b"], {"a": "10.0.0.1", "b": "10.0.0.2"}, 23456, "20261130-0930-cnn-3f9a"
    )
    assert two["runs"] == {"a": "20261130-0930-cnn-3f9a", "b": "20261130-0930-cnn-w1-3f9a"}
    assert json.loads(tf_config(two)) == {
        "cluster": {"worker": ["10.0.0.1:23456", "10.0.0.2:23456"]},
        "task": {"type": "worker", "index": 1},
    }
    run = {
        "id": "r",
        "identity": "i",
        "image": "sha256:1",
        "command": ["x"],
        "service": "cpu-train",
    }
    run |= {"shm_size": "1gb", "stop_grace": 5, "device": "cpu", "worker": one}
    mounts = Mounts("/in", "/out", "/scratch")
    service = json.loads(compose_run(run, [], mounts, "0:0", []).replace("!override ", ""))[
        "services"
    ]["cpu-train"]
    assert service["network_mode"] == "host"
    assert json.loads(service["environment"]["TF_CONFIG"])["task"]["index"] == 0
    alone = json.loads(
        compose_run({**run, "worker": None}, [], mounts, "0:0", []).replace("!override ", "")
    )
    assert "TF_CONFIG" not in alone["services"]["cpu-train"]["environment"]
    assert "network_mode" not in alone["services"]["cpu-train"]


@pytest.mark.parametrize(
    "code, state",
    [
        (0, "finished"),
        (75, "interrupted"),
        (1, "interrupted"),
        (-9, "interrupted"),
        (137, "interrupted"),
        (65, "failed"),
        (70, "failed"),
        (69, "failed"),
        (78, "failed"),
        (71, "failed"),
        (2, "failed"),
    ],
)
def test_a_worker_that_lost_another_goes_on_and_one_with_bad_data_does_not(code, state):
    assert why_ended(Facts(code, worker=True)).state == state


def test_alone_an_unknown_exit_code_is_a_failure_as_before():
    assert why_ended(Facts(1)).state == why_ended(Facts(137)).state == "failed"


def test_this_machines_addresses_are_told_apart():
    found = addresses({}, None)
    assert all(is_private(each) for each in found["private"])
    assert not any(is_private(each) or each.startswith("127.") for each in found["public"])


def test_our_images_are_alike_although_each_box_has_finished_its_own():
    request = {"runner": "docker", "device": "cpu", "fingerprint": "f"}
    two = [("a", {**request, "image": "sha256:1"}), ("b", {**request, "image": "sha256:2"})]
    check_alike([member(name, each, own_image=False) for name, each in two])
    with pytest.raises(BoxUnfit, match="have different images"):
        check_alike([member(name, each, own_image=True) for name, each in two])


WORKER = {"index": 1, "hosts": ["10.0.0.4:23456", "10.0.0.5:23456"], "runs": {"a": "x", "b": "y"}}


@pytest.mark.parametrize(
    "own, said",
    [
        (["10.0.0.5"], ""),
        (["172.17.0.1", "10.0.0.5"], ""),
        (
            ["10.0.0.6"],
            "know this box as 10.0.0.5, its addresses are 10.0.0.6: fab deploy --workers a,b",
        ),
        (["10.0.0.4"], "its addresses are 10.0.0.4"),
        ([], "its addresses are none"),
    ],
)
def test_a_box_that_has_moved_is_told_from_one_that_has_not(own, said):
    assert said in moved(WORKER, own) and bool(moved(WORKER, own)) is bool(said)


def summary(state, supervised=True, **more):
    return {"state": {"state": state, **more}, "supervised": supervised}


@pytest.mark.parametrize(
    "one, two, together",
    [
        (summary("running"), summary("staging"), True),
        (summary("running"), summary("queued", False), True),  # waits for a GPU
        (summary("running"), summary("running", False), False),  # as its box left it
        (summary("running"), summary("interrupted"), False),
        (summary("running"), {}, False),
    ],
)
def test_a_group_is_joined_only_where_all_of_it_runs(one, two, together):
    assert all_run({"a": one, "b": two}) is together


def test_who_waits_for_the_others_is_not_given_the_grace_of_a_save():
    assert patience(summary("running", attempt_at=9.0, first_step_at=3.0)) == 5.0
    assert patience(summary("running", attempt_at=9.0)) == 5.0
    assert patience(summary("running", attempt_at=9.0, first_step_at=12.0)) is None


REGISTER = 3600.0  # seconds that TensorFlow waits for its peers (kDefaultClusterRegisterTimeout)
LOOK = 15.0  # between two looks of a keeper, and a start


def next_start(ended, tries):
    """When a worker that ended at `ended` is started again, by looks of its keeper."""
    state = {"since": ended, "tries": tries, "boot": "b", "ending": {"text": "a worker ended"}}
    now = ended
    while not resume_verdict(state, now, "b")[0]:
        now += LOOK
    return now


@pytest.mark.parametrize("tries", [(a, b) for a in range(5) for b in range(5)])
@pytest.mark.parametrize("apart", [0.0, 10.0, 60.0, 600.0])  # seconds between their ends
def test_two_that_ended_meet_whatever_pauses_they_have(tries, apart):
    """The first to be started waits for the other inside TensorFlow, for longer than any pause."""
    starts = next_start(0.0, tries[0]), next_start(apart, tries[1])
    assert max(starts) <= apart + max(PAUSES) + LOOK
    assert max(starts) - min(starts) < REGISTER
