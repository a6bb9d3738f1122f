"""PURE: the sides of a comparison of CPU and GPU, as rows of a table and as bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADS = ("", "steps/s", "training", "first step", "whole run", "accuracy", "device")
LONGEST = 50  # characters of a bar


def rows(sides: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row a side: its rate, times in seconds, accuracy and device."""
    return [
        (
            kind.upper(),
            f"{side['steps_per_second']:.1f}",
            *(f"{side[key]:.1f} s" for key in ("seconds", "first_step_seconds", "wall_seconds")),
            f"{100 * side['test_accuracy']:.2f} %",
            str(side["device"]),
        )
        for kind, side in sides.items()
    ]


def bars(found: Mapping[str, Any]) -> list[str]:
    """A bar a side by its rate, and what comes of it in a sentence."""
    rates = {kind: float(side["steps_per_second"]) for kind, side in found["sides"].items()}
    most = max(rates.values())
    lines = [
        f"{kind.upper():4} {'█' * max(1, round(LONGEST * rate / most))} {rate:.1f} steps/s"
        for kind, rate in rates.items()
    ]
    if "speedup" in found:
        return [*lines, f"The GPU is {found['speedup']} times as fast."]
    return [*lines, "TensorFlow sees no GPU there, so there is only one side."]
