"""The environment that a provider gives a box; an SSH login often lacks it, so it is looked for."""

from __future__ import annotations

import contextlib
import os
import re
import shlex

# Where providers leave it, besides our own environment; the first to name a variable has the word.
FILES = ("/etc/environment", "/init/others/help")


def known_environment(
    init: str = "/proc/1/environ", files: tuple[str, ...] = FILES
) -> dict[str, str]:
    """Our own variables, those of process 1, and those that known files export."""
    found: dict[str, str] = {}
    for path in files:
        with contextlib.suppress(OSError):
            with open(path, errors="replace") as file:
                found.update(exports(file.read()))
    with contextlib.suppress(OSError):
        with open(init, "rb") as raw:
            pairs = raw.read().decode(errors="replace").split("\0")
        found.update(
            {pair.split("=", 1)[0]: pair.split("=", 1)[1] for pair in pairs if "=" in pair}
        )
    return {**found, **os.environ}


def exports(text: str) -> dict[str, str]:
    """`NAME=value` and `export NAME="value"` lines; everything else is passed over."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", line)
        if match:
            with contextlib.suppress(ValueError):
                found[match.group(1)] = " ".join(shlex.split(match.group(2)))
    return found


def fill_in(text: str, env: dict[str, str]) -> str:
    """`${NAME}` becomes its value, "" where there is none; `${file:PATH}` a file's first line."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name.startswith("file:"):
            with open(os.path.expanduser(name[5:])) as file:
                return file.readline().strip()
        return env.get(name, "")

    return re.sub(r"\$\{([^}]+)\}", value, text)


def names_in(text: str) -> list[str]:
    """The variables and files that `fill_in` would need."""
    return re.findall(r"\$\{([^}]+)\}", text)
