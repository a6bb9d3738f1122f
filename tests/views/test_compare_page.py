"""The page of `fab compare` in a real Chromium: it draws, fits a phone, asks nothing of anyone."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.views.browser import chromium

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
FAB = Path(sys.executable).parent / "fab"
HOSTILE = "x</script><script>document.title='PWN'</script><img src=http:evil onerror=alert(1)>"


def make_run(folder, shift, steps=3000, result=True, names=("cat", "dog")):
    folder.mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(0, steps, 10):
            row = {"step": step, "time": 1.7e9 + step, "seconds": step / 50}
            row |= {"loss": 2 * math.exp(-step / 900) + shift}
            if step % 500 == 0:
                row["validation_accuracy"] = 1 - math.exp(-step / 500) / 2 - shift
            file.write(json.dumps(row) + "\n")
        file.write('{"step": 99')  # cut by a kill
    if result:
        ended = {"schema": 1, "model": "cnn", "step": steps, "test_accuracy": 0.99 - shift}
        ended |= {"confusion": [[90, 10], [3, 97]], "class_names": list(names)}
        ended |= {"arguments": {"learning_rate": shift, "batch": 50}}
        (folder / "result.json").write_text(json.dumps(ended))
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(browser, tmp_path):
    runs = [
        make_run(tmp_path / "runs" / "20261130-0930-cnn-3f9a", 0.01),
        make_run(tmp_path / "runs" / "20261130-0931-cnn-81c2", 0.05, names=(HOSTILE, "dog")),
        make_run(tmp_path / "runs" / "20261130-0932-cnn-77d0", 0.1, steps=1500, result=False),
    ]
    out = tmp_path / "compare.html"
    done = subprocess.run(
        [FAB, "compare", *runs, "--out", out, "--no-browser", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    browser.data = json.loads(done.stdout)["results"]
    browser.requests.clear(), browser.errors.clear()
    browser.size(1280, 900)
    browser.open(out.as_uri())
    yield browser
    assert browser.errors == []


def test_it_draws_every_curve_and_both_tables(page):
    assert page.js("document.body.dataset.drawn") == "yes"
    drawn = "[...document.querySelectorAll('figure')].map(f => f.querySelectorAll('.curve').length)"
    assert page.js(drawn) == [3, 3]
    words = page.js("document.body.innerText")
    for expected in ("98.00 %", "94.00 %", "no result yet", "learning rate", "cat taken for dog"):
        assert expected in words
    assert "batch" not in words  # the same everywhere, so it explains nothing
    best = page.js("[...document.querySelectorAll('td.best')].map(c => c.textContent)")
    assert "98.00 %" in best and "94.00 %" not in best


def test_it_asks_for_nothing_but_itself(page):
    assert page.requests and all(re.match(r"file:|data:,$", each) for each in page.requests)
    assert page.js("performance.getEntriesByType('resource').length") == 0


def test_a_hostile_name_is_text_and_nothing_else(page):
    assert "PWN" not in page.js("document.title")
    assert page.js("document.querySelectorAll('img').length") == 0
    assert HOSTILE in page.js("document.getElementById('tables').textContent")


@pytest.mark.parametrize("width", [360, 414])
def test_it_is_readable_on_a_phone(page, width, tmp_path):
    page.size(width, 800, mobile=True)
    page.js("window.dispatchEvent(new Event('resize'))")
    assert page.js("document.documentElement.scrollWidth") <= width  # nothing to push sideways
    figures = page.js("[...document.querySelectorAll('figure')].map(f => f.clientWidth)")
    assert all(width * 0.8 <= each <= width for each in figures)
    heights = (
        "[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)"
    )
    assert min(page.js(heights)) >= 10  # pixels of a label on the screen
    buttons = "[...document.querySelectorAll('button')].map(b => b.getBoundingClientRect().height)"
    assert min(page.js(buttons)) >= 40  # a finger's width
    page.picture(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").stat().st_size > 10_000


def test_a_run_can_be_hidden_and_the_axis_changed(page):
    page.js("document.querySelectorAll('#runs button')[1].click()")
    names = page.js("[...document.querySelectorAll('figure .curve')].map(c => c.dataset.run)")
    assert len(names) == 4 and "20261130-0931-cnn-81c2" not in names
    page.js("along.value = '1'; along.dispatchEvent(new Event('input'))")
    assert "50 s" in page.js("document.querySelector('svg').textContent")


def test_what_a_curve_says_under_the_pointer(page):
    where = page.js(
        "(r => [r.left + r.width / 2, r.top + r.height / 2])"
        "(document.querySelector('svg').getBoundingClientRect())"
    )
    page("Input.dispatchMouseEvent", type="mouseMoved", x=where[0], y=where[1])
    said = page.js("document.querySelector('figure output').textContent")
    assert re.fullmatch(r"step 1\d{3}: [\d.]+ · [\d.]+ · [\d.]+", said)


def test_the_answer_has_the_same_figures_as_the_page(page):
    (accuracy,) = (
        row
        for each in page.data["tables"]
        for row in each["rows"]
        if row["label"] == "test accuracy"
    )
    assert accuracy == {"label": "test accuracy", "cells": ["98.00 %", "94.00 %", "–"], "best": [0]}
