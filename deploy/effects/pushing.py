"""Brings a checkpoint from home to a box, for a run that is to begin from it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from deploy.effects.agent import Agent
from deploy.effects.homecoming import SUMS, damage, drain
from deploy.effects.link import Done
from deploy.errors import TransferError, UsageError
from deploy.plan.fetch import is_step

OnBytes = Callable[[int], None]


def checkpoint_at(path: Path) -> Path:
    """The folder itself; UsageError where it is no whole checkpoint."""
    if not is_step(path.name) or not (path / SUMS).is_file():
        raise UsageError(f"{path} is no checkpoint (a folder step_… with {SUMS})", "fab fetch")
    wrong = damage(path)
    if wrong:
        raise UsageError(f"{path}: {wrong} does not have its checksum", "fetch it again")
    return path


def push_checkpoint(box: Agent, run: str, folder: Path, on_bytes: OnBytes) -> dict[str, Any]:
    """Send the folder's files; the box verifies them before it keeps them for the run."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    listed = [
        {"name": path.relative_to(folder).as_posix(), "size": path.stat().st_size} for path in files
    ]
    stream = box.open("seed", id=run, step=folder.name, files=listed)
    drain(stream.stderr)
    answer: list[bytes] = []
    reader = threading.Thread(target=lambda: answer.append(stream.stdout.read()), daemon=True)
    reader.start()
    try:
        for path in files:
            _send(path, stream.stdin, on_bytes)
        stream.stdin.close()
    except OSError:
        pass  # the box ended it: its answer says why
    try:
        reader.join(120)
        if reader.is_alive():
            raise TransferError("the box does not say whether it has the checkpoint", "try again")
        return box.answer("seed", Done(stream.wait(), answer[0] if answer else b"", b""))
    finally:
        stream.close()


def _send(path: Path, target: IO[bytes], on_bytes: OnBytes) -> None:
    with path.open("rb") as file:
        for data in iter(lambda: file.read(1 << 20), b""):
            target.write(data)
            on_bytes(len(data))
    target.flush()
