"""What the keeper was armed with: rule.json, a second copy of it, and the channels (0600)."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from .idle import Rule
from .life import keeper_folder
from .publish import read_json, write_json

NAMES = ("rule.json", ".rule-copy.json")


def write_armed(armed: dict[str, Any]) -> None:
    for name in NAMES:
        write_json(os.path.join(keeper_folder(), name), armed)


def read_armed() -> dict[str, Any] | None:
    """rule.json, or its copy where it was deleted or damaged; None where neither can be read."""
    for name in NAMES:
        with contextlib.suppress(OSError, ValueError):
            return read_json(os.path.join(keeper_folder(), name))
    return None


def armed_mark() -> tuple[int, int] | None:
    """Changes when rule.json is replaced; None where it is gone."""
    with contextlib.suppress(OSError):
        stat = os.stat(os.path.join(keeper_folder(), NAMES[0]))
        return stat.st_mtime_ns, stat.st_ino
    return None


def disarm_files() -> None:
    for name in NAMES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(keeper_folder(), name))


def write_channels(channels: list[dict[str, str]]) -> None:
    write_json(os.path.join(keeper_folder(), "channels.json"), {"schema": 1, "channels": channels})


def read_channels() -> list[dict[str, str]]:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return list(read_json(os.path.join(keeper_folder(), "channels.json"))["channels"])
    return []


def rule_of(armed: dict[str, Any]) -> Rule:
    """The part of it that decides."""
    return Rule(**{key: armed["rule"][key] for key in Rule._fields if key in armed["rule"]})
