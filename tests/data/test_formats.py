"""docs/formats.md: its examples of data sets are read by the code that reads the real ones."""

import json
import re

import pytest

from deploy.effects.settings import root
from deploy.onbox.manifest import Checker, line_of, read_manifest
from tests.data.conftest import small_files

PAGE = (root() / "docs" / "formats.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- example: (\S+) -->\n```(?:json|text)\n(.*?)```", PAGE, re.DOTALL))


def test_the_manifest_on_the_page_is_one():
    lines = EXAMPLES["manifest"].splitlines(keepends=True)
    header, entries = read_manifest(lines)
    check = Checker()
    for line, entry in zip(lines[1:], entries, strict=True):
        check.add(entry)
        assert line_of(entry) == line
    assert check.header(header.created) == header


def test_current_on_the_page_has_the_keys_of_a_real_one(box, tmp_path):
    small_files(tmp_path / "set", 3)
    box.upload(tmp_path / "set")
    real = json.loads((box.data / "set" / ".gpubox" / "current").read_text())
    assert real.keys() == json.loads(EXAMPLES["current"]).keys()


@pytest.mark.parametrize("count", [99, 100])
def test_what_the_page_says_of_few_and_many(box, tmp_path, count):
    small_files(tmp_path / "set", count)
    box.upload(tmp_path / "set")
    packs = list((box.data / "set" / ".gpubox" / "packs").iterdir())
    assert bool(packs) is (count == 100) and bool(box.visible()) is (count == 99)
