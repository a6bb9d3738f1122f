"""The values behind the page: curves over resumes, thinning, what differs, what is best."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.plan.compare import (
    RunFiles,
    best_of,
    curve,
    differing,
    fill,
    page_data,
    shown,
    thin,
)

ROOT = Path(__file__).resolve().parents[2]
FAB = Path(sys.executable).parent / "fab"


def test_training_time_goes_on_over_a_resume_that_counts_from_zero():
    rows = [{"step": s, "seconds": t, "loss": 1.0} for s, t in ((1, 5), (2, 10), (3, 2), (4, 4))]
    assert [point[:2] for point in curve(rows, "loss")] == [(1, 5), (2, 10), (3, 12), (4, 14)]


def test_without_seconds_the_wall_time_counts_from_the_first_row():
    rows = [{"step": 1, "time": 100.0, "loss": 1}, {"step": 2, "time": 107.5, "loss": 1}]
    assert [point[1] for point in curve(rows, "loss")] == [0, 7.5]


def test_numbers_that_are_none_leave_a_gap_and_never_reach_json():
    rows = [{"step": i, "loss": v} for i, v in enumerate([1.0, float("nan"), None, "x", True, 2.0])]
    assert [point[2] for point in curve(rows, "loss")] == [1.0, 2.0]
    result = {"test_accuracy": float("inf"), "loss": float("nan")}
    json.dumps(page_data([RunFiles("a", rows, result)]), allow_nan=False)


def test_thinning_keeps_the_ends_and_every_spike():
    points = [(i, i, 0.0) for i in range(100_000)]
    points[77_777] = (77_777, 77_777, 9.0)
    points[31_337] = (31_337, 31_337, -9.0)
    few = thin(points, 1000)
    assert len(few) <= 1000 and few[0] == points[0] and few[-1] == points[-1]
    assert {9.0, -9.0} <= {point[2] for point in few} and few == sorted(few)


@pytest.mark.parametrize(
    "key, values, best",
    [
        ("test_accuracy", [0.9, 0.95, None], [1]),
        ("test_accuracy", [0.9, 0.9], []),
        ("test_accuracy", [0.9], []),
        ("wall_seconds", [30.0, 20.0, 20.0], [1, 2]),
        ("steps_per_second", [30.0, 20.0], [0]),
        ("loss", [1.0, 2.0], []),
        ("step", [1, 2], []),
    ],
)
def test_best(key, values, best):
    assert best_of(key, values) == best


@pytest.mark.parametrize(
    "key, value, text",
    [
        ("test_accuracy", 0.98123, "98.12 %"),
        ("wall_seconds", 41.62, "41.6 s"),
        ("wall_seconds", 4162.0, "1 h 9 min"),
        ("step", 20000, "20,000"),
        ("loss", 0.123456, "0.1235"),
        ("loss", None, "–"),
    ],
)
def test_figures_as_people_read_them(key, value, text):
    assert shown(key, value) == text


def test_only_what_differs_is_listed_and_a_run_that_says_nothing_makes_no_difference():
    one = RunFiles("a", result={"model": "bp", "arguments": {"lr": 1, "batch": 5}})
    two = RunFiles("b", result={"model": "bp", "arguments": {"lr": 2, "batch": 5}})
    rows = differing([one, two, RunFiles("c")])
    assert rows == [{"label": "lr", "cells": ["1", "2", "–"], "best": []}]


def test_no_name_breaks_out_of_the_page():
    page = fill("<title>TITLE</title>|DATA|", {"x": "</script><b>"}, "<i>&")
    assert page == '<title>&lt;i&gt;&amp;</title>|{"x":"\\u003c/script>\\u003cb>"}|'


def test_a_run_that_is_not_home_is_named_with_the_remedy(tmp_path):
    done = subprocess.run(
        [FAB, "compare", "20261130-0930-cnn-3f9a"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 41 and "fab fetch --run 20261130-0930-cnn-3f9a" in done.stderr
    assert not (ROOT / "compare.html").exists()
