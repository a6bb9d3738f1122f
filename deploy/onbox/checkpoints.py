"""Checkpoints on disk as a run publishes them: their names, their checksums, whether they are whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re

from .refusal import Refusal
from .steps import checkpoint_steps

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def pointer(checkpoints: str, name: str) -> str:
    """The folder that LATEST or best names: a hint; "" where there is none."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open(os.path.join(checkpoints, name), encoding="utf-8") as file:
            text = file.readline().strip()
        return text if re.fullmatch(r"step_[0-9]{8,}", text) else ""
    return ""


def parse_sums(text: str) -> dict[str, str]:
    """SHA256SUMS as name → checksum; ValueError for a line or a name that is not fit."""
    found = {}
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        name = match.group(2) if match else ""
        if not match or os.path.isabs(name) or ".." in name.split("/"):
            raise ValueError(f"{SUMS}: {line[:80]!r}")
        found[name] = match.group(1)
    return found


def find_checkpoint(folder: str, step: str) -> str:
    """The folder of a run's checkpoint: `last`, `best`, or by its name; NoSuchRun else."""
    checkpoints = os.path.join(folder, "output", "checkpoints")
    names = [f"step_{number:08d}" for number in checkpoint_steps(folder)]
    name = {"last": (names or [""])[-1], "best": pointer(checkpoints, "best")}.get(step, step)
    if name not in names:
        there = ", ".join(names[-3:]) or "none"
        raise Refusal("NoSuchRun", f"{os.path.basename(folder)}: no checkpoint {step}", f"{there}")
    return os.path.join(checkpoints, name)


def verify(checkpoint: str) -> None:
    """VerifyError where a file of the checkpoint does not have its checksum."""
    try:
        with open(os.path.join(checkpoint, SUMS), encoding="utf-8") as file:
            sums = parse_sums(file.read())
        wrong = [n for n, wanted in sums.items() if digest(os.path.join(checkpoint, n)) != wanted]
    except (OSError, ValueError) as no:
        raise Refusal("VerifyError", f"{checkpoint} is not a whole checkpoint: {no}", "") from no
    if wrong:
        raise Refusal("VerifyError", f"{checkpoint}: {wrong[0]} does not have its checksum", "")


def digest(path: str) -> str:
    """SHA-256 of a file, in pieces."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for data in iter(lambda: file.read(1 << 20), b""):
            total.update(data)
    return total.hexdigest()
