"""The one exception of the box side: a named kind that becomes the same error on the laptop."""

from __future__ import annotations


class Refusal(Exception):
    """`kind` is the name of a class in deploy/errors.py; `message` and `hint` are one line each."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
