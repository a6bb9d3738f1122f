"""Runs that have come home: their files as values, whatever is missing or cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.plan.compare import RunFiles

RECORDS = ("result", "run", "state")


def read_run(folder: Path) -> RunFiles:
    """What lies in a run's folder; a file that is missing or damaged counts as empty."""
    records = {name: _json(folder / f"{name}.json") for name in RECORDS}
    return RunFiles(folder.name, read_rows(folder / "metrics.jsonl"), **records)


def is_run(folder: Path) -> bool:
    """True for a folder that has at least something of a run."""
    names = ["metrics.jsonl", *(f"{name}.json" for name in RECORDS)]
    return any((folder / name).is_file() for name in names)


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


def write_page(path: Path, text: str) -> None:
    """Put a page in place whole, by a rename."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
