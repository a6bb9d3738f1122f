"""Runs that have come home: their files as values, whatever is missing or cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.effects.settings import beside_config
from deploy.plan.compare import RunFiles

RECORDS = ("result", "run", "state")


def home_of_runs() -> Path:
    """Where `fab fetch` puts what it brings: home/RUN, laid out as on the box."""
    return beside_config("home")


def read_run(folder: Path) -> RunFiles:
    """What lies in a run's folder, or in a program's output folder alone; a file that is missing
    or damaged counts as empty."""
    records = {name: _json(_inside(folder, f"{name}.json")) for name in RECORDS}
    return RunFiles(folder.name, read_rows(_inside(folder, "metrics.jsonl")), **records)


def is_run(folder: Path) -> bool:
    """True for a folder that has at least something of a run."""
    names = ["metrics.jsonl", *(f"{name}.json" for name in RECORDS)]
    return any(_inside(folder, name).is_file() for name in names)


def _inside(folder: Path, name: str) -> Path:
    in_output = folder / "output" / name
    return in_output if in_output.is_file() else folder / name


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a line that was cut by a kill is left out."""
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
    return rows


def template(name: str) -> str:
    """One of the pages beside the code, with TITLE and DATA to be filled in."""
    return (Path(__file__).parent.parent / "pages" / name).read_text(encoding="utf-8")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
