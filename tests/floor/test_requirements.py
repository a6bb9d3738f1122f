"""The locked requirements hold all that pyproject.toml asks for, on every Python that it allows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def names(lines):
    """Normalised names of requirements (PEP 503)."""
    found = [re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line) for line in lines]
    return {re.sub(r"[-_.]+", "-", each.group()).lower() for each in found if each}


@pytest.mark.parametrize(
    "lock,wanted",
    [
        ("requirements.lock", PROJECT["project"]["dependencies"]),
        ("requirements-dev.lock", PROJECT["dependency-groups"]["dev"]),
    ],
)
def test_the_lock_holds_what_the_oldest_python_needs_too(lock, wanted):
    locked = [line for line in (ROOT / lock).read_text().splitlines() if "==" in line]
    assert names(wanted) <= names(locked)
    assert PROJECT["project"]["requires-python"] == ">=3.10"
    older = [line for line in locked if "python_full_version < '3.11'" in line]
    assert "tomli" in names(older)  # what 3.11 has of its own: left out of a lock made by 3.11
