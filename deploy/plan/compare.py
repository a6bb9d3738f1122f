"""PURE: several runs as one page: their curves, how they ended, and what was different about them."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from deploy.plan.quantities import show_duration

SCHEMA = 1
POINTS = 1500  # of one curve on the page; more than a screen is wide
NOT_CURVES = ("step", "time", "seconds", "schema", "steps_per_second")

# What a result.json says, in the order and words in which people look for it.
ENDINGS = (
    ("test_accuracy", "test accuracy"),
    ("validation_accuracy", "validation accuracy"),
    ("loss", "training loss"),
    ("step", "step"),
    ("wall_seconds", "wall time"),
    ("training_seconds", "training alone"),
    ("first_step_seconds", "to the first step"),
    ("steps_per_second", "steps per second"),
)
# What a run.json says about where it came from.
ORIGINS = ("box", "runner", "device", "image", "commit")


@dataclass(frozen=True)
class RunFiles:
    """What is at home of one run; a file that is not there is empty."""

    name: str
    metrics: Sequence[Mapping[str, Any]] = ()  # rows of metrics.jsonl
    result: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


def page_data(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """Everything that the page shows, as JSON values (no NaN in it)."""
    return {
        "schema": SCHEMA,
        "runs": [{"name": each.name, "state": state_of(each)} for each in runs],
        "charts": charts(runs),
        "tables": [
            {"title": "Results", "rows": result_rows(runs)},
            {"title": "What differs", "rows": differing(runs)},
        ],
        "confusions": [confusions(each.result) for each in runs],
    }


def state_of(run: RunFiles) -> str:
    """`finished` and the like from state.json; else what the files tell."""
    if run.state.get("state"):
        return str(run.state["state"])
    return "finished" if run.result else "no result yet"


def charts(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """One chart a metric, in the order in which metrics first appear; `curves[i]` is run i's."""
    names = dict.fromkeys(
        key for each in runs for row in each.metrics for key in row if key not in NOT_CURVES
    )
    drawn = []
    for name in names:
        curves = [thin(curve(each.metrics, name)) for each in runs]
        if any(curves):
            drawn.append({"metric": name, "curves": curves})
    return drawn


def curve(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float, float]]:
    """(step, seconds of training, value) of every row that has a finite number for the metric.

    `seconds` begins again in a program that does not remember it over a resume: then it is added
    to what was there before. Without it the rows' wall time counts from the first row.
    """
    points, base, last = [], 0.0, 0.0
    begin = next((row["time"] for row in rows if _finite(row.get("time"))), 0.0)
    for row in rows:
        seconds = row.get("seconds")
        if _finite(seconds):
            base += last if seconds < last else 0.0
            last = seconds
        elif _finite(row.get("time")):
            base, last = row["time"] - begin, 0.0
        if _finite(row.get("step")) and _finite(row.get(name)):
            points.append((row["step"], round(base + last, 3), row[name]))
    return points


def thin(
    points: list[tuple[float, float, float]], limit: int = POINTS
) -> list[tuple[float, float, float]]:
    """At most `limit` points: of each stretch its lowest and highest, so that no spike is lost."""
    if len(points) <= limit:
        return points
    stretch = math.ceil(len(points) / (limit // 2 - 1))
    kept = {0, len(points) - 1}
    for start in range(0, len(points), stretch):
        here = range(start, min(start + stretch, len(points)))
        kept |= {min(here, key=lambda i: points[i][2]), max(here, key=lambda i: points[i][2])}
    return [points[i] for i in sorted(kept)]


def result_rows(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """Rows of (label, one text a run, which run is best) for what any of the runs has."""
    rows: list[dict[str, Any]] = [
        {"label": "state", "cells": [state_of(each) for each in runs], "best": []}
    ]
    for key, label in ENDINGS:
        values = [reached(each).get(key) for each in runs]
        if any(_finite(value) for value in values):
            cells = [shown(key, value) for value in values]
            rows.append({"label": label, "cells": cells, "best": best_of(key, values)})
    return rows


def reached(run: RunFiles) -> Mapping[str, Any]:
    """The result, or what the newest measured row says where the run has not ended yet."""
    return run.result or (run.metrics[-1] if run.metrics else {})


def shown(key: str, value: Any) -> str:
    """A figure as people read it; an en dash where there is none."""
    if not _finite(value):
        return "–" if value is None else str(value)
    if "accuracy" in key:
        return f"{100 * value:.2f} %"
    if key.endswith("_seconds"):
        return f"{value:.1f} s" if value < 60 else show_duration(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def best_of(key: str, values: Sequence[Any]) -> list[int]:
    """The runs that have the best of a figure; none where all are equal or the key has no best."""
    finite = [value for value in values if _finite(value)]
    if len(finite) < 2 or min(finite) == max(finite) or key in ("step", "loss"):
        return []  # losses of different programs are different quantities
    high = "accuracy" in key or "per_second" in key
    best = max(finite) if high else min(finite)
    return [i for i, value in enumerate(values) if value == best]


def differing(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """What was asked for differently: arguments, and where the run came from."""
    asked = [_asked(each) for each in runs]
    rows = []
    for key in dict.fromkeys(key for each in asked for key in each):
        cells = [_text(each.get(key)) for each in asked]
        if len({cell for cell, each in zip(cells, asked, strict=True) if each}) > 1:
            rows.append({"label": key.replace("_", " "), "cells": cells, "best": []})
    return rows


def _asked(run: RunFiles) -> dict[str, Any]:
    """Where it came from, what decided its numbers; its command where it has not ended yet."""
    asked = {key: run.run[key] for key in ORIGINS if key in run.run}
    data = run.run.get("data")
    if isinstance(data, Mapping):
        asked["data"] = f"{data.get('name', '')} {str(data.get('version', ''))[:12]}"
    if "model" in run.result:
        asked["model"] = run.result["model"]
    for key in ("arguments", "versions"):
        found = run.result.get(key)
        asked.update(found if isinstance(found, Mapping) else {})
    if run.run.get("command") and not run.result.get("arguments"):
        asked["command"] = run.run["command"]
    return asked


def confusions(result: Mapping[str, Any], most: int = 5) -> list[str]:
    """`4 taken for 9: 23 times`, the most frequent first, from a result's confusion matrix."""
    matrix, names = result.get("confusion"), result.get("class_names")
    if not isinstance(matrix, list) or not isinstance(names, list):
        return []
    wrong = [
        (count, str(names[true]), str(names[taken]))
        for true, row in enumerate(matrix)
        for taken, count in enumerate(row)
        if true != taken and count
    ]
    wrong.sort(key=lambda each: -each[0])
    return [f"{true} taken for {taken}: {count} times" for count, true, taken in wrong[:most]]


def fill(template: str, data: Mapping[str, Any], title: str) -> str:
    """The page: `template` with our data in it as JSON that no name can break out of."""
    embedded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return template.replace("TITLE", html.escape(title)).replace("DATA", embedded, 1)


def _finite(value: Any) -> TypeGuard[float]:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(str(each) for each in value)
    return "–" if value is None or value == "" else str(value)
