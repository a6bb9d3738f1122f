"""PURE: plain values as YAML that people read; text that YAML could take for something else is quoted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# A word that no YAML version reads as anything but this text: it begins with a letter, and holds
# none of the signs that mean something.
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
WORDS = re.compile(r"(?i)(y|n|yes|no|true|false|on|off|null|nan|inf)")
BLOCK = re.compile(r"[\x20-\x7e]+")


def yaml_text(value: Any) -> str:
    """`value` (mappings, lists, str, int, float, bool, None) as one YAML document."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [line for key, each in value.items() for line in _pair(key, each)]
    if _is_list(value) and value:
        return [line for each in value for line in _item(each)]
    return [_scalar(value)]


def _pair(key: str, value: Any) -> list[str]:
    name = _scalar(key)
    if _is_block(value):
        return [f"{name}: |", *("  " + line for line in value[:-1].split("\n"))]
    if _on_one_line(value):
        return [f"{name}: {_flow(value)}"]
    indent = "  " if isinstance(value, Mapping) else ""
    return [f"{name}:", *(indent + line for line in _lines(value))]


def _item(value: Any) -> list[str]:
    if _on_one_line(value):
        return [f"- {_flow(value)}"]
    lines = _lines(value)
    return ["- " + lines[0], *("  " + line for line in lines[1:])]


def _on_one_line(value: Any) -> bool:
    """Scalars, what is empty, and short lists of scalars."""
    if isinstance(value, Mapping):
        return not value
    if _is_list(value):
        flat = all(not isinstance(e, Mapping) and not _is_list(e) for e in value)
        return flat and len(_flow(value)) <= 88
    return True


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{}"
    if _is_list(value):
        return "[" + ", ".join(_scalar(each) for each in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        safe = PLAIN.fullmatch(value) and not WORDS.fullmatch(value)
        return value if safe else json.dumps(value)
    return json.dumps(value, allow_nan=False)


def _is_block(value: Any) -> bool:
    """Lines of a script that a block can hold as they are (a first line that is indented can't)."""
    if not isinstance(value, str) or not value.endswith("\n") or value.startswith((" ", "\n")):
        return False
    return not value.endswith("\n\n") and all(
        BLOCK.fullmatch(line) for line in value[:-1].split("\n")
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
