"""PURE: one check of a box, and which of several is the worst."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Verdict = Literal["ok", "note", "unknown", "warn", "bad"]
ORDER: tuple[Verdict, ...] = ("ok", "note", "unknown", "warn", "bad")  # from best to worst


class Check(NamedTuple):
    """One line of the table. `kind`: the error (deploy/errors.py) whose exit code a bad one gives."""

    name: str
    value: str
    verdict: Verdict = "ok"
    remedy: str = ""
    kind: str = "BoxUnfit"


def worst(found: Iterable[Check]) -> Check | None:
    """The first of the worst verdict; None where there is no check."""
    return max(found, key=lambda check: ORDER.index(check.verdict), default=None)
