"""The workload's own look at a staged data set, by whatever on the box can run it: image or Python."""

from __future__ import annotations

import base64
import contextlib
import glob
import os
import shutil
import subprocess
import tempfile
from typing import Any

from .activity import active
from .docker_runner import docker, engine_answers, last_line
from .evaluate import container_words
from .launch import unpack_code
from .places import Places, find_places
from .pythons import candidates
from .refusal import Refusal

LIMIT = 1800.0  # seconds
DATA = 65  # the workload's exit code for data that it can't train on
CHECK = ["-m", "workload", "check"]


def check_staged(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: of the staged folder at `path`, by one of `images`, or by `python` or another one with
    the workload of `code`. Answers `said` (what is there) or `skipped` (why it was not looked at);
    DataError where it can't be trained on."""
    places, note = find_places(request), request["path"] + ".checked"
    if known := _read(note):
        return {"said": known}  # the same content was right before
    with active("check data"), tempfile.TemporaryDirectory(dir=places.home) as scratch:
        image = _image(request["images"])
        python = "" if image else _python(places, request.get("python") or "")
        if image:
            words = container_words(image, {"/input": request["path"]}, ["python", *CHECK])
            done = docker(*words, seconds=LIMIT)
        elif python:
            unpack_code(base64.b64decode(request["code"]), scratch)
            done = _run(python, scratch, request["path"])
        else:
            return {"skipped": "the box has no image of ours yet, and no Python with numpy"}
    verdict = _verdict(done)
    if "said" in verdict:
        with contextlib.suppress(OSError), open(note, "w", encoding="utf-8") as file:
            file.write(verdict["said"])
    return verdict


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        return file.read()
    return ""


def _image(names: list[str]) -> str:
    """The first of the images that the engine has, if there is one."""
    if not shutil.which("docker") or not engine_answers():
        return ""
    return next((n for n in names if docker("image", "inspect", n).returncode == 0), "")


def _python(places: Places, named: str) -> str:
    """The first Python with numpy: the user's, those of runs, the box's."""
    venvs = glob.glob(os.path.join(places.data, ".gpubox-venv-*", ".ready"))
    ours = [os.path.join(os.path.dirname(each), "bin", "python") for each in venvs]
    for path in [shutil.which(os.path.expanduser(named)) or "", *ours, *candidates()]:
        if path and _succeeds([path, "-c", "import numpy"]):
            return path
    return ""


def _succeeds(command: list[str]) -> bool:
    try:
        quiet = subprocess.DEVNULL
        done = subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _run(python: str, code: str, path: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": code, "GPUBOX_INPUT": path}
    try:
        return subprocess.run(
            [python, *CHECK],
            cwd=code,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([python], 124, "", f"no answer within {LIMIT:.0f} s")


def _verdict(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    if done.returncode == 0:
        return {"said": last_line(done.stdout).partition(": ")[2]}  # without the folder
    why = last_line(done.stderr)
    if done.returncode == DATA:
        what = why[len("error: ") :] if why.startswith("error: ") else why
        raise Refusal("DataError", what, "it is staged whole: mend the set, and upload it again")
    return {"skipped": f"the look at it failed: {why}"}
