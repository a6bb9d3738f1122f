"""Which layers travel, and why, as a table."""

import pytest

from deploy.plan.image import Bring, by_the_better_line
from deploy.plan.shipment import deflate_level, known_layers, plan_shipment, why_these

A, B, C, D = ("sha256:" + letter * 64 for letter in "abcd")


@pytest.mark.parametrize(
    ("ours", "theirs", "known"),
    [
        ([A, B, C], [], 0),
        ([A, B, C], [[A, B, D]], 2),
        ([A, B, C], [[D], [A], [A, B, C, D]], 3),
        ([A, B, C], [[B, C]], 0),  # the same layers upon other ones are other layers to the engine
        ([A, B, C], [[A, D, C]], 1),
    ],
)
def test_leading_layers_that_some_image_has_stay_here(ours, theirs, known):
    assert known_layers(ours, theirs) == known
    assert list(plan_shipment(ours, theirs, {})) == ours[known:]


def test_what_was_spooled_is_left_out_of_layers_that_travel_alone():
    assert plan_shipment([A, B, C], [[A]], {A: 9, C: 4}) == {B: 0, C: 4}


def test_a_layer_that_occurs_twice_travels_once_or_not_at_all():
    assert plan_shipment([A, B, B], [], {}) == {A: 0, B: 0}
    assert plan_shipment([A, B, A], [[A]], {}) == {B: 0}


def test_the_reason_says_how_much_and_what_for():
    assert why_these([A, B, C], {A: 0, B: 0, C: 0}) == "all 3 layers"
    assert why_these([A, B, C], {C: 0}) == "1 of 3 layers, the others are on the box"
    assert why_these([A, B], {A: 0, B: 3}) == "all 2 layers; goes on after 48 MiB"


SHIP, BUILD = Bring("ship", "not on the box"), Bring("build", "no engine here")
HOME, LAB = 100e6 / 8, 1e9 / 8  # bytes per second


@pytest.mark.parametrize(
    ("bring", "device", "known", "rate", "action"),
    [
        (SHIP, "cpu", 0, HOME, "ship"),  # half a minute
        (SHIP, "gpu", 0, HOME, "ship"),  # four minutes
        (SHIP, "gpu", 0, HOME / 10, "build"),  # 43 minutes
        (SHIP, "gpu", 7, HOME / 10, "ship"),  # but the box has all but the last layer
        (SHIP, "gpu", 1, HOME / 10, "build"),  # the base alone is not much
        (SHIP, "cpu", 0, HOME / 100, "build"),
        (BUILD, "gpu", 0, LAB, "build"),
        (SHIP, "cpu", 0, 0.0, "build"),
    ],
)
def test_a_first_image_is_built_there_where_this_line_is_slow(bring, device, known, rate, action):
    chosen = by_the_better_line(bring, device, known, rate)
    assert chosen.action == action
    assert chosen is bring or "min" in chosen.why


def test_a_slow_line_gets_deflated_layers_and_a_fast_one_gets_them_as_they_are():
    assert deflate_level(HOME) == 1 and deflate_level(LAB) == 0
