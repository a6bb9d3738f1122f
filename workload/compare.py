"""Trains the same steps on the CPU and on the GPU, and shows the times side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from workload import results
from workload.errors import GPU_MISSING, MEANINGS, WorkloadError

BAR = 40  # characters of the longest bar


def compare(model: str, steps: int, as_json: bool) -> int:
    """Prints a table and a bar chart, or JSON; says so where there is only one side."""
    sides = {}
    for kind in ("cpu", "gpu"):
        if not as_json:
            print(f"training {steps} steps of {model} on the {kind.upper()} …", flush=True)
        found = one_side(model, steps, kind)
        if found:
            sides[kind] = found
    summary = {"schema": 1, "model": model, "steps": steps, "sides": sides}
    if len(sides) == 2:
        rate = {kind: each["steps_per_second"] for kind, each in sides.items()}
        summary["speedup"] = round(rate["gpu"] / rate["cpu"], 2)
    print(json.dumps(summary) if as_json else table(summary))
    return 0


def one_side(model: str, steps: int, kind: str) -> dict[str, Any] | None:
    """Times of a run of its own process on `kind`; None where there is no such device."""
    environment = {k: v for k, v in os.environ.items() if k not in ("REQUIRE_GPU", "TF_CONFIG")}
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        environment["GPUBOX_OUTPUT"] = folder
        command = [sys.executable, "-m", "workload", model, "--steps", str(steps)]
        command += ["--device", kind, "--save-every", "0", "--no-report", "--deterministic", "off"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode == GPU_MISSING and kind == "gpu":
            return None
        if done.returncode:
            last = [text for text in done.stderr.splitlines() if text.startswith("error:")]
            said = last[-1] if last else MEANINGS.get(done.returncode, f"code {done.returncode}")
            raise WorkloadError(f"the {kind.upper()} side failed: {said.removeprefix('error: ')}")
        result = results.read(Path(folder))
    return {
        "device": result["device"]["names"][0],
        "seconds": result["training_seconds"],
        "steps_per_second": result["steps_per_second"] or steps / result["training_seconds"],
        "first_step_seconds": result["first_step_seconds"],
        "wall_seconds": result["wall_seconds"],
        "test_accuracy": result["test_accuracy"],
    }


def table(summary: dict[str, Any]) -> str:
    """The sides as a table with bars of their rates."""
    sides = summary["sides"]
    most = max(each["steps_per_second"] for each in sides.values())
    lines = ["", "      steps/s   training   first step   whole run   accuracy   device"]
    for kind, each in sides.items():
        lines.append(
            f"{kind.upper():4} {each['steps_per_second']:8.1f} {each['seconds']:8.1f} s "
            f"{each['first_step_seconds']:10.1f} s {each['wall_seconds']:9.1f} s "
            f"{100 * each['test_accuracy']:8.2f} %   {each['device']}"
        )
    lines.append("")
    for kind, each in sides.items():
        bar = "█" * max(1, round(BAR * each["steps_per_second"] / most))
        lines.append(f"{kind.upper():4} {bar} {each['steps_per_second']:.1f} steps/s")
    if "speedup" in summary:
        lines.append(f"\nThe GPU is {summary['speedup']} times as fast.")
    else:
        lines.append("\nTensorFlow sees no GPU here, so there is only one side.")
    return "\n".join(lines)
