"""Every `fab …` that the pages name is one that there is, with flags that it has."""

import re
import shlex
from pathlib import Path

import pytest

import fabfile
from deploy.command import VerbTask

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("README*.md"), *sorted((ROOT / "docs").glob("*.md"))]
VERBS = {name: each for name, each in vars(fabfile).items() if isinstance(each, VerbTask)}
NO_VERB = {"VERB", "help"}  # `fab VERB --help`, and the list of them


def commands_of(text):
    """The words after `fab` of each command in a code block or between backquotes."""
    blocks = re.findall(r"^ {4,}(?:\$ )?(fab .*)$", text, re.MULTILINE)
    inline = [each for each in re.findall(r"`([^`]+)`", text) if each.startswith("fab ")]
    for line in [*blocks, *inline]:
        line = re.split(r"\s{2,}#|\s#\s|[;|]|&&|、", line)[0]
        yield line, shlex.split(line.replace("…", ""))[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_exists(page):
    for line, words in commands_of(page.read_text(encoding="utf-8")):
        while words and words[0] in ("--search-root",):
            words = words[2:]
        if not words or words[0] in NO_VERB or not re.fullmatch(r"[a-z]+", words[0]):
            continue
        assert words[0] in VERBS, line
        flags = {name for each in VERBS[words[0]].get_arguments() for name in each.names}
        known = {f"--{name}" if len(name) > 1 else f"-{name}" for name in flags} | {"--help"}
        known |= {f"--no-{name.removeprefix('--')}" for name in known}
        for before, word in zip(words, words[1:], strict=False):
            if word.startswith("-") and before != "--args":
                assert word.split("=")[0] in known, f"{line}: {word}"


def test_the_pages_name_commands_at_all():
    found = [line for page in PAGES for line, _ in commands_of(page.read_text(encoding="utf-8"))]
    assert len(found) > 50
