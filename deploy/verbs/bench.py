"""`fab bench`: the same steps on a box's CPU and on its GPU, side by side as table and bar chart."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from deploy.console import Show
from deploy.errors import RunFailed, UsageError
from deploy.plan.bench import HEADS, bars, rows
from deploy.verbs.desk import Desk
from deploy.verbs.launch import launch_run
from deploy.verbs.logs import follow_run


def bench(desk: Desk, model: str, steps: int, data: str) -> list[dict[str, Any]]:
    """One box after the other, as a run there: it waits for its GPU in the queue like any other.

    Returns {box, id, model, steps, sides: {cpu, gpu}, speedup}; without `gpu` and `speedup` where
    TensorFlow sees no GPU.
    """
    if model not in ("cnn", "bp") or steps < 1:
        raise UsageError(f"--model {model} --steps {steps}", "cnn or bp; one step or more")
    training = comparing(desk, model, steps)
    wanted = data or str(desk.config.run.data)
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            dataset = {"name": wanted, "version": "current"} if wanted else None
            run = launch_run(training, box, name, dataset=dataset, wait=False)["id"]
        if not desk.dry_run:
            found = measured(desk, name, run)
            show(desk, name, found)
            results.append({"box": name, "id": run, **found})
    return results


def comparing(desk: Desk, model: str, steps: int) -> Desk:
    """The desk with the bundled comparison as what is to be run, in the kit's own image."""
    command = ("python", "-m", "workload", "compare", "--model", model, "--steps", str(steps))
    rule = replace(desk.config.run, command=(*command, "--json"), args=(), code="", image="")
    return replace(desk, config=replace(desk.config, run=rule))


def measured(desk: Desk, name: str, run: str) -> dict[str, Any]:
    """What the run printed at its end; RunFailed where it came to no result."""
    desk.show.step(f"{name}: training on the CPU, then on the GPU where there is one")
    ended = follow_run(replace(desk, show=Show(machine=True)), name, run)
    with desk.open(name) as box:
        lines = box.call("status", run=run)["tail"]
    answers = [line for line in lines if line.startswith("{")]
    if ended["state"] != "finished" or not answers:
        why = (lines or ["it printed nothing"])[-1]
        raise RunFailed(f"{name}: {run} is {ended['state']}: {why}", f"fab logs --run {run}")
    return dict(json.loads(answers[-1]))


def show(desk: Desk, name: str, found: dict[str, Any]) -> None:
    title = f"{name}: {found['steps']} steps of {found['model']}"
    desk.show.table(HEADS, rows(found["sides"]), title)
    for line in bars(found):
        desk.show.say(line)
