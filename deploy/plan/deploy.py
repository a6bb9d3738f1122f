"""PURE: how a box will train, and whether a deploy starts a run, resumes one, or finds it running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deploy.errors import EngineError, GpuError
from deploy.plan.config import Box, RunRule

IMAGES = {"cpu": "gpubox/cpu:latest", "gpu": "gpubox/gpu:latest"}
ALL_IMAGES = {**IMAGES, "notebook": "gpubox/notebook:latest"}  # all that are built from a clone
ENVIRONMENTS = {"cpu": "gpubox/cpu:env", "gpu": "gpubox/gpu:env"}  # without the kit's own programs
ALIVE = ("created", "queued", "staging", "running", "stopping")
RESUMABLE = ("stopped", "interrupted")


class Way(NamedTuple):
    """How a box trains: `runner` docker or process, `device` gpu or cpu, and why so."""

    runner: str
    device: str
    why: str


class Start(NamedTuple):
    """What a deploy does: `new`, `resume` or `attach` (it runs already); `run` is the old one's id."""

    action: str
    run: str
    why: str


def choose_way(name: str, box: Box, rule: RunRule, facts: Mapping[str, Any], device: str) -> Way:
    """The runner and the device, from what was asked for and what the box has; never a CPU where a
    GPU was asked for."""
    asked = device or box.device
    cards = facts["gpus"]["cards"]
    if asked == "gpu" and not cards:
        raise GpuError(
            f"{name}: a GPU was asked for and the box shows none",
            f"fab doctor --host {name} tells why; --device cpu trains without one",
        )
    chosen = asked if asked != "auto" else ("gpu" if cards and rule.gpus != "0" else "cpu")
    runner, why = _runner(name, box, facts)
    why_device = (
        "as asked" if asked != "auto" else (f"{len(cards)} GPU(s) here" if cards else "no GPU")
    )
    return Way(runner, chosen, f"{why}; {why_device}")


def _runner(name: str, box: Box, facts: Mapping[str, Any]) -> tuple[str, str]:
    engine = facts["engine"]
    if box.runner == "docker" and not engine["answers"]:
        raise EngineError(f"{name}: {engine['why']}", f"fab bootstrap --host {name}")
    if box.runner != "auto":
        return box.runner, "as asked"
    if engine["answers"]:
        return "docker", f"Docker {engine['version']} answers"
    if engine["present"] and not facts["container"]:
        raise EngineError(
            f"{name}: {engine['why']}",
            f"fab doctor --host {name}; or boxes.{name}.runner = 'process'",
        )
    return "process", engine["why"]


def choose_start(
    runs: Sequence[Mapping[str, Any]], fingerprint: str, version: str, image: str, new: bool
) -> Start:
    """What to do about earlier runs of exactly this program on exactly this data and image.

    runs         summaries, oldest first
    fingerprint  of the program, its command and its packages
    version      of the data set; "" without one
    image        the exact id; "" for the process runner
    """
    if new:
        return Start("new", "", "as asked")
    same = [each for each in runs if _is_same(each, fingerprint, version, image)]
    for each in reversed(same):
        state = each["state"]["state"]
        if state in ALIVE:
            return Start("attach", each["id"], f"{each['id']} does the same and is {state}")
        if state in RESUMABLE:
            return Start("resume", each["id"], f"{each['id']} was {state}")
        if state == "finished":
            return Start("new", "", f"{each['id']} did the same and is finished")
        break
    return Start("new", "", "no run like it that could go on")


def _is_same(each: Mapping[str, Any], fingerprint: str, version: str, image: str) -> bool:
    run = each.get("run") or {}
    data = run.get("data") or {}
    return (
        not each.get("damaged")
        and run.get("fingerprint") == fingerprint
        and (data.get("version") or "") == version
        and (run.get("image") or "") == image
    )
