"""`fab launch` and `fab resume`: start a run on a box, and come back with its first step."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.program import commit_of, own_packages, packed_program
from deploy.effects.pushing import checkpoint_at, push_checkpoint
from deploy.effects.settings import beside_config, config_path, root
from deploy.errors import KitError, LinkLost, RunFailed, UsageError
from deploy.plan.config import Box, RunRule
from deploy.plan.run import (
    check_env,
    fingerprint,
    full_command,
    launch_request,
    phases_line,
    run_id,
    slug_of,
    state_line,
    uses_workload,
)
from deploy.verbs.desk import Desk

RETRIES = (1, 2, 5, 10, 30, 60)  # seconds before each new try to reach a box again


def launch(
    desk: Desk,
    args: str = "",
    gpus: str = "",
    device: str = "",
    data: str = "",
    follow: bool = False,
    begin: str = "",
) -> list[dict[str, Any]]:
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            wanted = data or desk.config.run.data
            dataset = {"name": wanted, "version": "current"} if wanted else None
            options: dict[str, Any] = {"args": args, "gpus": gpus, "device": device}
            result = launch_run(desk, box, name, dataset=dataset, begin=begin, **options)
        results.append({"box": name, **result})
    if follow and not desk.dry_run:
        from deploy.verbs.logs import follow_to_the_end

        follow_to_the_end(desk, desk.hosts[-1], results[-1]["id"])
    return results


def launch_run(
    desk: Desk,
    box: Agent,
    name: str,
    *,
    dataset: dict[str, str] | None = None,
    image: str = "",
    args: str = "",
    gpus: str = "",
    device: str = "",
    run: str = "",
    wait: bool = True,
    begin: str = "",
) -> dict[str, Any]:
    """Make one run and start it; with `wait`, return at its first step, its end or in the queue.

    dataset  {name, version} as uploaded; None for a program that needs none
    image    an exact image id; the kit's own image on the box if empty
    begin    a checkpoint: a folder here, or RUN, RUN/best, RUN/step_… on the box
    Returns the box's report {id, outcome, state, progress, …}; RunFailed where it ended badly.
    """
    settings = desk.box(name)
    settings = replace(settings, device=_device(device)) if device else settings
    request = plan_launch(desk, name, dataset, image, args, gpus, settings, run)
    if begin:
        request["origin"] = bring_checkpoint(desk, box, request["id"], begin)
    return submit(desk, name, box, request, wait)


def bring_checkpoint(desk: Desk, box: Agent, run: str, begin: str) -> dict[str, Any]:
    """Put the checkpoint where the run `run` will find it; what run.json says of it."""
    folder = Path(begin).expanduser()
    if not folder.is_dir():
        source, _, step = begin.partition("/")
        return {"run": source, "step": step or "last"}
    if desk.dry_run:
        return {"folder": str(folder)}
    with desk.show.progress(f"bring {folder.name}", None) as bar:
        answer = push_checkpoint(box, run, checkpoint_at(folder.resolve()), bar.advance)
    return {"folder": str(folder), "step": answer["step"], "sums": answer["sums"]}


def submit(
    desk: Desk, name: str, box: Agent, request: dict[str, Any], wait: bool = True
) -> dict[str, Any]:
    """Have the box make and start the run of a planned request; the report as of `launch_run`."""
    if desk.dry_run:
        shown = " ".join(request["command"])
        desk.show.say(f"launch {request['id']} on {name}: {shown} ({request['runner']})")
        return {"id": request["id"], "outcome": "planned"}
    desk.show.step(f"run {request['id']} on {name}")
    report = watched(desk, name, box, "launch", {**request, "wait": wait}, request["id"])
    return conclude(desk, report) if wait else report


def plan_launch(
    desk: Desk,
    name: str,
    dataset: dict[str, str] | None,
    image: str,
    args: str,
    gpus: str,
    box: Box,
    run: str = "",
) -> dict[str, Any]:
    """The request, with all that travels: program, compose.yaml, variables.

    box  the settings, with the device of the command line in it
    """
    rule = desk.config.run
    command = full_command(rule, args)
    project = config_path()
    commit, clean = commit_of(project.parent if project else root())
    workload = root() / "workload" if uses_workload(command) or box.python == "" else None
    extra = {
        "id": run or run_id(time.time(), slug_of(command), secrets.token_hex(2)),
        "data": dataset,
        "image": image,
        "gpus": gpus,
        "commit": commit,
        "clean": clean,
        "code": packed_program(workload, beside_config(rule.code) if rule.code else None),
        "compose": _text(root() / "compose.yaml"),
        "requirements": _requirements(box),
        "packages": "" if box.runner == "docker" else own_packages(rule.requirements),
        "env": _variables(desk, rule, box),
    }
    code, locked, own, env = (
        str(extra[key] or "") for key in ("code", "requirements", "packages", "env")
    )
    extra["fingerprint"] = fingerprint(command, code, locked + own, env)
    return launch_request(name, box, rule, command, extra)


def _device(asked: str) -> Any:
    if asked not in ("auto", "gpu", "cpu"):
        raise UsageError(f"--device {asked}", "auto, gpu or cpu")
    return asked


def _variables(desk: Desk, rule: RunRule, box: Box) -> str:
    """The text of the user's env file; it travels inside the request, never in an argument."""
    if not rule.env_file:
        return ""
    path = beside_config(rule.env_file)
    if not path.is_file():
        raise UsageError(f"run.env_file: {path} is not there", "make it, with mode 600")
    text = path.read_text(encoding="utf-8")
    for line in check_env(text, box.device):
        desk.show.warn(line)
    return text


def _requirements(box: Box) -> str:
    """The locked packages, for a box whose process runner may have to make its own environment."""
    if box.runner == "docker" or box.python:
        return ""
    device = "gpu" if box.device == "gpu" else "cpu"
    return _text(root() / "images" / f"requirements-{device}.lock")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def watched(
    desk: Desk, name: str, box: Agent, verb: str, request: dict[str, Any], run: str
) -> dict[str, Any]:
    """Call a verb that waits for the first step; over a lost link the waiting goes on."""
    seen = {"made": verb != "launch"}

    def on_event(event: dict[str, Any]) -> None:
        seen["made"] = seen["made"] or "created" in event
        if event.get("state"):
            desk.show.step(f"{event['state']} {event.get('doing', '')}".strip())

    try:
        return box.call(verb, on_event, **request)
    except LinkLost:
        if not seen["made"]:
            raise
        desk.show.warn(f"the link to {name} broke off; the run goes on there")
        return reconnected(
            desk, name, lambda again: again.call("wait", on_event, run=run), "waiting for the run"
        )


def reconnected(
    desk: Desk, name: str, act: Callable[[Agent], dict[str, Any]], what: str
) -> dict[str, Any]:
    """Open the box anew and do `act`, with growing pauses; the last error if none succeeds."""
    for number, pause in enumerate(RETRIES, 1):
        time.sleep(pause)
        try:
            with desk.open(name) as again:
                return act(again)
        except KitError as no:
            if no.exit_code not in (11, 12) or number == len(RETRIES):
                raise
            desk.show.note(f"{what}: try {number}: {no.message}")
    raise AssertionError("unreachable")


def conclude(desk: Desk, report: dict[str, Any]) -> dict[str, Any]:
    """Say how the start went; RunFailed with the last lines of output where it did not go."""
    run, state, outcome = report["id"], report["state"], report["outcome"]
    if outcome == "first-step":
        desk.show.done(f"{run}: first step done")
    elif outcome == "queued":
        desk.show.warn(f"{run} waits in the queue: {state.get('waits_for', '')}")
    elif outcome in ("output", "silent"):
        say_stepless(desk, report)
    elif state["state"] == "finished":
        desk.show.done(f"{run} finished")
    else:
        for line in report.get("tail", [])[-10:]:
            desk.show.note(line)
        raise RunFailed(f"{run}: {state_line(state)}", f"fab logs --run {run}")
    if state.get("phases"):
        desk.show.note(phases_line(state["phases"]))
    return report


def say_stepless(desk: Desk, report: dict[str, Any]) -> None:
    """Of a program that runs and writes no progress.json: what it printed last, if anything."""
    run, lines = report["id"], report.get("tail", [])[-3:]
    for line in lines:
        desk.show.note(line)
    said = "runs and prints" if report["outcome"] == "output" else "runs and has printed nothing"
    desk.show.done(f"{run} {said}; it has reported no step yet (no progress.json)")
    desk.show.note(f"fab logs --run {run} --follow shows what it prints")


def resume(desk: Desk, run: str = "") -> list[dict[str, Any]]:
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            request = {"run": run, "wait": True}
            report = watched(desk, name, box, "resume", request, run)
            results.append({"box": name, **conclude(desk, report)})
    return results
