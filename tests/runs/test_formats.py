"""docs/formats.md: every example is JSON, and has the keys that the real files have."""

import json
import os
import re

import pytest

from deploy.effects.settings import root
from deploy.onbox.endings import why_ended
from deploy.verbs.unlock import deploying
from tests.runs.test_endings import TABLE

PAGE = (root() / "docs" / "formats.md").read_text()
FOUND = re.findall(r"<!-- example: (\S+) -->\n```json\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = {name: json.loads(text) for name, text in FOUND}


def real(folder, name):
    with open(os.path.join(folder, name)) as file:
        return json.load(file)


def test_every_example_is_marked_and_carries_its_schema():
    assert len(EXAMPLES) == PAGE.count("```json")
    assert all(example["schema"] == 1 for example in EXAMPLES.values())


@pytest.mark.slow
def test_a_real_run_has_these_keys(box):
    report = box.launch(
        "progress(1, 2)\ntry:\n    time.sleep(600)\nexcept Ending:\n    sys.exit(75)"
    )
    folder = report["folder"]
    assert set(real(folder, "run.json")) == set(EXAMPLES["run.json"])
    box.agent.call("home", run=report["id"], step=1, where="here")
    assert set(real(folder, "home.json")) == set(EXAMPLES["home.json"])
    box.agent.call("stop", run=report["id"])
    state = real(folder, "state.json")
    assert set(state) == set(EXAMPLES["state.json"])
    assert set(state["phases"]) == set(EXAMPLES["state.json"]["phases"])


@pytest.mark.slow
def test_the_intent_and_the_lock_have_these_keys(box, tmp_path):
    from deploy.onbox.stopping import write_intent

    written = write_intent(str(tmp_path), "the user", "stopped", 120.0)
    assert set(written) == set(EXAMPLES["intent.json"])
    with deploying(box.agent):
        box.agent.call("facts")
        held = real(os.path.join(box.places.home, "deploy.lock"), "holder.json")
        assert set(held) == set(EXAMPLES["holder.json"])


def test_every_kind_of_ending_is_named():
    kinds = {why_ended(facts).kind for facts, *_ in TABLE}
    missing = [kind for kind in kinds if f"`{kind}`" not in PAGE]
    assert not missing
