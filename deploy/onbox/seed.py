"""Takes a checkpoint that a new run is to begin from, verified before the run is made."""

from __future__ import annotations

import os
import shutil
from typing import Any

from .activity import active
from .checkpoints import SUMS, digest, find_checkpoint, verify
from .places import Places, find_places
from .publish import publish_folder
from .refusal import Refusal
from .runs import ID, run_folder
from .steps import STEP


def seed(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb (bulk in): `files` [{name, size}] of the checkpoint `step`, their bytes one after the
    other on stdin; they wait for the launch of the run `id`."""
    places = find_places(request)
    step, part = _prepare(places, request["id"], request["step"])
    with active("receive a checkpoint"):
        _receive(request["files"], part, wire)
    return _publish(part, step)


def _receive(files: list[dict[str, Any]], part: str, wire: Any) -> None:
    for each in files:
        name = each["name"]
        if os.path.isabs(name) or ".." in name.split("/"):
            raise Refusal("DataError", f"a checkpoint with a file {name!r}", "")
        path = os.path.join(part, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            _copy(wire.input, file, int(each["size"]))


def seed_from_run(places: Places, run_id: str, source: str, step: str) -> dict[str, Any]:
    """The same from a run on this box; its files are linked, for they never change."""
    checkpoint = find_checkpoint(run_folder(places, source), step)
    final, part = _prepare(places, run_id, os.path.basename(checkpoint))
    os.rmdir(part)
    shutil.copytree(checkpoint, part, copy_function=_link_or_copy)
    return _publish(part, final)


def _prepare(places: Places, run_id: str, step: str) -> tuple[str, str]:
    if not ID.fullmatch(run_id) or not STEP.fullmatch(step):
        raise Refusal("UsageError", f"{run_id} {step}: no run id and step", "")
    checkpoints = os.path.join(places.runs, ".seed-" + run_id, "checkpoints")
    shutil.rmtree(os.path.dirname(checkpoints), ignore_errors=True)
    part = os.path.join(checkpoints, ".part-" + step)
    os.makedirs(part, mode=0o700)
    return os.path.join(checkpoints, step), part


def _publish(part: str, final: str) -> dict[str, Any]:
    verify(part)
    publish_folder(part, final)
    return {"step": os.path.basename(final), "sums": digest(os.path.join(final, SUMS))}


def _copy(source: Any, target: Any, size: int) -> None:
    while size:
        data = source.read(min(1 << 20, size))
        if not data:
            raise Refusal("TransferError", "the checkpoint broke off", "the same command again")
        target.write(data)
        size -= len(data)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
