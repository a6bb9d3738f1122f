"""Test accuracy of a checkpoint: the workload's own evaluation, in the run's image or Python."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tempfile
from typing import Any

from .activity import active
from .checkpoints import find_checkpoint, verify
from .docker_runner import docker, image_id, last_line
from .launch import choose_runner, unpack_code
from .places import Places, find_places
from .process_runner import visible_gpus
from .pythons import prepare_python
from .refusal import Refusal
from .runs import pick_run, read_run, run_folder
from .stage import stage_version

LIMIT = 3600.0  # seconds


def evaluate(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: of `run` (and `step`: last, best or a folder's name), or of the folder at `path`.

    A folder that is no run's comes with `data` (a folder), `code`, `runner` and `python`.
    """
    places = find_places(request)
    with active("evaluate"), tempfile.TemporaryDirectory(dir=places.home) as scratch:
        if request.get("path"):
            checkpoint, run = os.path.abspath(request["path"]), _loose_run(request, scratch)
            data = request["data"]
        else:
            checkpoint, run, data = _of_run(places, request)
        verify(checkpoint)
        wire.event(doing=f"evaluate {os.path.basename(checkpoint)} in {run['runner']}")
        return {**_answer(places, run, checkpoint, data), "checkpoint": checkpoint}


def _of_run(places: Places, request: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    run_id = pick_run(places, request.get("run", ""))
    folder = run_folder(places, run_id)
    run = {**read_run(folder), "folder": folder}
    if not run.get("data"):
        raise Refusal("DataError", f"{run_id} was started without a data set", "")
    checkpoint = find_checkpoint(folder, request.get("step") or "last")
    return checkpoint, run, stage_version(places, run["data"]["name"], run["data"]["version"])


def _loose_run(request: dict[str, Any], scratch: str) -> dict[str, Any]:
    """What a run would say, for a checkpoint that lies somewhere else."""
    runner = choose_runner(request.get("runner") or "auto")
    run: dict[str, Any] = {"runner": runner, "device": "cpu"}
    run.update(folder=scratch, python=request.get("python"), needs="tensorflow")
    run["requirements"] = request.get("requirements")
    if run["runner"] == "docker":
        run["image"] = image_id(request.get("image") or "gpubox/cpu:latest")
    else:
        unpack_code(base64.b64decode(request["code"]), os.path.join(scratch, "code"))
    return run


def _answer(places: Places, run: dict[str, Any], checkpoint: str, data: str) -> dict[str, Any]:
    if run["runner"] == "docker":
        mounts = {"/checkpoint": checkpoint, "/input": data}
        command = [
            "python",
            "-m",
            "workload",
            "evaluate",
            "/checkpoint",
            "--json",
            "--device",
            "cpu",
        ]
        done = docker(*container_words(run["image"], mounts, command), seconds=LIMIT)
    else:
        python = prepare_python(places, {**run, "device": "cpu"}, lambda text: None)
        words = ["evaluate", checkpoint, "--json", "--device", "cpu"]
        done = workload_here(python, os.path.join(run["folder"], "code"), data, words, LIMIT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise Refusal("RunFailed", f"the evaluation failed: {last_line(done.stderr)}", "--debug")
    return dict(json.loads(lines[-1]))


def container_words(image: str, mounts: dict[str, str], command: list[str]) -> list[str]:
    """`docker run` of one look at folders (by where they are mounted): read-only, no network, no GPU."""
    words = ["run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp"]
    words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += ["--user", f"{os.getuid()}:{os.getgid()}", "--label", "gpubox.evaluate=1"]
    for target, source in mounts.items():
        words += ["--mount", f'type=bind,"source={source}",target={target},readonly']
    for name, value in {**visible_gpus("-1"), "REQUIRE_GPU": ""}.items():
        words += ["--env", f"{name}={value}"]
    return [*words, image, *command]


def workload_here(
    python: str, code: str, data: str, words: list[str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """One command of the workload in `code`, as a process of the box that sees no GPU; code 124
    where it does not end within `seconds`."""
    environment = {**os.environ, "PYTHONPATH": code, "GPUBOX_INPUT": data, **visible_gpus("-1")}
    try:
        return subprocess.run(
            [python, "-m", "workload", *words],
            cwd=code,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([python], 124, "", f"no answer within {seconds:.0f} s")
