"""`fab compare`: several fetched runs side by side on one page that needs nothing but a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploy.effects.browser import open_file
from deploy.effects.copies import write_atomically
from deploy.effects.fetched import home_of_runs, is_run, read_run, template
from deploy.errors import NoSuchRun, UsageError
from deploy.plan.compare import fill, page_data
from deploy.verbs.desk import Desk


def compare(desk: Desk, runs: str, out: str = "compare.html", browser: bool = True) -> Any:
    """`runs` are ids of fetched runs, or folders, with commas between; none: all that are home."""
    folders = folders_of([each for each in runs.split(",") if each])
    found = [read_run(each) for each in folders]
    data = page_data(found)
    if desk.dry_run:
        desk.show.say(f"would compare {', '.join(each.name for each in found)} in {out}")
        return data
    path = Path(out)
    title = title_of([each.name for each in found])
    write_atomically(path, fill(template("compare.html"), data, title).encode())
    desk.show.table(["", *(each.name for each in found)], rows_of(data))
    desk.show.done(f"{path}: {len(data['charts'])} charts of {len(found)} runs")
    if browser:
        open_file(path)
    return {"page": str(path), **data}


def folders_of(words: list[str]) -> list[Path]:
    """The folder of each word, each once; NoSuchRun for one that is not here."""
    if not words:
        home = home_of_runs()
        found = sorted(each for each in home.glob("*") if is_run(each)) if home.is_dir() else []
        if not found:
            raise UsageError("compare: which runs? none is home yet", "fab fetch, then fab compare")
        return found
    return list(dict.fromkeys(_folder(each) for each in words))


def _folder(word: str) -> Path:
    for folder in (Path(word), home_of_runs() / word):
        if is_run(folder):
            return folder
    raise NoSuchRun(
        f"{word}: no run of that name is home, and it is no run's folder",
        f"bring it: fab fetch --run {Path(word).name}",
    )


def title_of(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def rows_of(data: dict[str, Any]) -> list[list[str]]:
    """The tables of the page for the terminal."""
    return [[row["label"], *row["cells"]] for each in data["tables"] for row in each["rows"]]
