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
from .evaluate import container_words, workload_here
from .launch import unpack_code
from .places import Places, find_places
from .process_runner import code_of
from .pythons import candidates
from .refusal import Refusal

LIMIT = 1800.0  # seconds
DATA = 65  # the workload's exit code for data that it can't train on


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
            done = _by_image(image, request["path"])
        elif python:
            unpack_code(base64.b64decode(request["code"]), scratch)
            done = workload_here(python, scratch, request["path"], ["check"], LIMIT)
        else:
            return {"skipped": "the box has no image of ours yet, and no Python with numpy"}
    return _noted(note, _verdict(done))


def check_for_run(run: dict[str, Any], folder: str, path: str, python: str) -> None:
    """The same look before a run takes its GPUs, by its own image, or by its `python` with the code
    in its folder; DataError where the bundled workload can't train on what is at `path`.

    A program of the user's own has its own idea of what is right.
    """
    note, code = path + ".checked", os.path.join(folder, "code")
    ours = list(run["command"])[1:3] == ["-m", "workload"] and code_of(folder) == code
    if not ours or not run.get("data") or _read(note):
        return
    with active("check data"):
        if python:
            done = workload_here(python, code, path, ["check"], LIMIT)
        else:
            done = _by_image(run["image"], path)
    _noted(note, _verdict(done))


def _by_image(image: str, path: str) -> subprocess.CompletedProcess[str]:
    words = container_words(image, {"/input": path}, ["python", "-m", "workload", "check"])
    return docker(*words, seconds=LIMIT)


def _noted(note: str, verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict; a good one is kept beside the staged folder, for the next look."""
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


def _verdict(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    if done.returncode == 0:
        return {"said": last_line(done.stdout).partition(": ")[2]}  # without the folder
    why = last_line(done.stderr)
    if done.returncode == DATA:
        what = why[len("error: ") :] if why.startswith("error: ") else why
        raise Refusal("DataError", what, "it is staged whole: mend the set, and upload it again")
    return {"skipped": f"the look at it failed: {why}"}
