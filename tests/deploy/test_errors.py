"""Errors: every kind has an exit code of its own, and the box names only kinds that exist."""

import ast
from pathlib import Path

from deploy.errors import KitError, all_errors, error_named

ROOT = Path(__file__).resolve().parents[2]


def test_every_kind_has_a_code_of_its_own_and_a_meaning():
    codes = [kind.exit_code for kind in all_errors()]
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 126 for code in codes)  # above: the shell's own meanings
    meanings = [kind.meaning for kind in all_errors()]
    assert len(set(meanings)) == len(meanings) and all(meanings)


def refusals():
    """(file, line, kind) of every `Refusal("Kind", …)` on the box's side."""
    for path in sorted((ROOT / "deploy" / "onbox").glob("**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal"
            if named and isinstance(node.args[0], ast.Constant):
                yield path.name, node.lineno, node.args[0].value


def test_what_the_box_refuses_with_is_a_kind_that_the_laptop_knows():
    found = list(refusals())
    assert found
    unknown = [each for each in found if error_named(each[2]).__name__ != each[2]]
    assert not unknown


def test_a_kind_from_a_newer_box_is_still_an_error():
    assert error_named("InventedTomorrow") is KitError
