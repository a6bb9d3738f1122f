"""Checkpoints on disk: written under another name, checksummed, synced, renamed; read back whole.

A checkpoint is a folder `step_00001200/` with `state.npz` (every tensor), `meta.json` and
`SHA256SUMS` (as `sha256sum -c` reads it). Neither holds a time, so equal states are equal bytes.
This module needs numpy only: a checkpoint can be read where there is no TensorFlow.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workload.errors import CheckpointError

SCHEMA = 2
NAME = re.compile(r"step_(\d{8,})")
SUMS = "SHA256SUMS"
PART = ".part-"


def folder_name(step: int) -> str:
    """`step_00001200` for 1200."""
    return f"step_{step:08d}"


def digest(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, in order of their names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.data)
    return total.hexdigest()


def write(folder: Path, tensors: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Writes one checkpoint's files into the new folder `folder`; OSError where it can't."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "state.npz", "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(tensors):
            entry = zipfile.ZipInfo(name + ".npy", (1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(tensors[name]), allow_pickle=False)
    content = {"schema": SCHEMA, **meta, "state_sha256": digest(tensors)}
    (folder / "meta.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    lines = [f"{_sha256(folder / name)}  {name}\n" for name in ("meta.json", "state.npz")]
    (folder / SUMS).write_text("".join(lines))


def publish(scratch: Path, checkpoints: Path) -> tuple[Path, str]:
    """Copies the checkpoint at `scratch` into `checkpoints`, whole or not at all.

    Returns its folder there, and a sentence where something had to be moved aside, else "".
    A reader never sees a `step_…` folder that is not complete and on the disk.
    """
    target = checkpoints / scratch.name
    part = checkpoints / (PART + scratch.name)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        for source in sorted(scratch.iterdir()):
            _copy_synced(source, part / source.name)
        problem = damage(part)
        if problem:
            raise OSError(f"{part}: {problem} after the copy; the disk is not to be trusted")
        _sync_folder(part)
        said = _move_aside(target)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _sync_folder(checkpoints)
    write_atomically(checkpoints / "LATEST", target.name + "\n")
    return target, said


def _move_aside(target: Path) -> str:
    """Makes room for `target` without destroying what stands there."""
    if not target.exists():
        return ""
    problem = damage(target)
    for number in range(1, 1000):
        aside = target.with_name(f"{target.name}.{'damaged' if problem else 'older'}-{number}")
        if not aside.exists():
            target.rename(aside)
            return f"{target} was there already ({problem or 'whole'}): kept as {aside.name}"
    raise OSError(f"{target}: too many damaged copies beside it; remove some")


def damage(folder: Path) -> str:
    """What is wrong with the checkpoint in `folder`; "" if it is whole."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
        if not lines:
            return f"{SUMS} is empty"
        for line in lines:
            wanted, name = line.split("  ", 1)
            if _sha256(folder / name) != wanted:
                return f"{name} does not match its checksum"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError) as error:
        return f"can't be read ({error})"
    return ""


def steps(checkpoints: Path) -> list[int]:
    """The steps that have a folder, ascending; whether they are whole is not looked at."""
    if not checkpoints.is_dir():
        return []
    found = (NAME.fullmatch(entry.name) for entry in checkpoints.iterdir() if entry.is_dir())
    return sorted(int(match.group(1)) for match in found if match)


def newest(checkpoints: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and one sentence for each one that had to be passed over.

    Raises CheckpointError where there are step folders and none can be read: starting again at
    step 0 would throw work away that someone may be able to save.
    """
    passed: list[str] = []
    hint = _pointer(checkpoints / "LATEST")
    found = steps(checkpoints)
    if hint and not (checkpoints / hint).is_dir():
        passed.append(f"{checkpoints}/LATEST names {hint}, which is not there")
    for step in reversed(found):
        folder = checkpoints / folder_name(step)
        problem = damage(folder)
        if not problem:
            if not hint:
                passed.append(f"{checkpoints}/LATEST is missing; {folder.name} is the newest whole")
            return folder, passed
        passed.append(f"{folder} is damaged: {problem}")
    if found or hint:
        raise CheckpointError(
            f"{checkpoints}: no readable checkpoint ({'; '.join(passed)}); "
            "mend or move the folder away to start anew"
        )
    return None, passed


def read(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(tensors, meta) of a whole checkpoint; CheckpointError names what is wrong."""
    problem = damage(folder)
    if problem:
        raise CheckpointError(f"{folder}: {problem}; fetch it again, or take the one before it")
    meta = read_meta(folder)
    with np.load(folder / "state.npz", allow_pickle=False) as archive:
        tensors = {name: archive[name] for name in archive.files}
    if meta["schema"] < 2:  # the dense layer of the net had a column for each unit
        dense = [name for name in tensors if name.startswith("dense/weights")]
        tensors |= {name: tensors[name].T for name in dense}
    return tensors, meta


def read_meta(folder: Path) -> dict[str, Any]:
    """The checkpoint's meta.json; CheckpointError where it is not ours or from a newer version."""
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())
        schema = meta["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: meta.json can't be read ({error})") from error
    if schema > SCHEMA:
        raise CheckpointError(f"{folder}: made by a newer version (schema {schema}); upgrade first")
    return meta


def rotation(
    found: list[int], best: int | None, keep_last: int, keep_every: int
) -> list[tuple[int, str]]:
    """What to do with each of the whole checkpoints at steps `found`: (step, reason).

    Reasons begin with "keep" or "remove". Pure; damaged ones are not to be passed in.
    """
    last = set(sorted(found)[-keep_last:])
    plan = []
    for step in sorted(found):
        if step in last:
            plan.append((step, f"keep: one of the newest {keep_last}"))
        elif step == best:
            plan.append((step, "keep: the best by validation"))
        elif keep_every and step % keep_every == 0:
            plan.append((step, f"keep: a multiple of {keep_every}"))
        else:
            plan.append((step, "remove: neither new, nor best, nor a milestone"))
    return plan


def remove(folder: Path) -> None:
    """Removes one checkpoint such that no reader ever sees half of it."""
    part = folder.with_name(PART + "old-" + folder.name)
    shutil.rmtree(part, ignore_errors=True)
    folder.rename(part)
    shutil.rmtree(part)


def sweep(checkpoints: Path) -> None:
    """Removes what a killed save left behind."""
    if checkpoints.is_dir():
        for entry in checkpoints.iterdir():
            if entry.name.startswith(PART):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name.startswith(".tmp-"):
                entry.unlink(missing_ok=True)


def write_atomically(path: Path, text: str, sync: bool = True) -> None:
    """Replaces `path` by `text`: a reader sees the old file or the new one.

    sync: it also survives a power cut (not worth a disk's flush for a heartbeat).
    """
    temporary = path.with_name(f".tmp-{path.name}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    temporary.replace(path)
    if sync:
        _sync_folder(path.parent)


def _pointer(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        name = path.read_text().strip()
        return name if NAME.fullmatch(name) else ""
    return ""


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            yield block


def _sha256(path: Path) -> str:
    total = hashlib.sha256()
    for block in _blocks(path):
        total.update(block)
    return total.hexdigest()


def _copy_synced(source: Path, target: Path) -> None:
    with open(target, "wb") as file:
        for block in _blocks(source):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
