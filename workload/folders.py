"""Where the kit tells a program to read and write: three environment variables."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from workload.errors import OutputInUse

LOCK = ".trainer-{}.lock"


class Folders(NamedTuple):
    """input: the staged data set; output: the run's folder; scratch: fast and local."""

    input: Path
    output: Path
    scratch: Path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are published."""
        return self.output / "checkpoints"

    @property
    def board(self) -> Path:
        """Where TensorBoard looks."""
        return self.output / "tensorboard"


def folders() -> Folders:
    """From GPUBOX_INPUT (default /input), GPUBOX_OUTPUT (/output), GPUBOX_SCRATCH (temporary)."""
    scratch = os.environ.get("GPUBOX_SCRATCH") or tempfile.gettempdir()
    return Folders(
        Path(os.environ.get("GPUBOX_INPUT") or "/input"),
        Path(os.environ.get("GPUBOX_OUTPUT") or "/output"),
        Path(scratch),
    )


def claim(output: Path, worker: int = 0) -> int:
    """Takes `output` for this process alone until it ends, however it ends; a descriptor to keep.

    worker: this one's index among several, which may share a folder. OutputInUse where another
    trainer has it. A disk that knows no locks is taken without one.
    """
    held = os.open(output / LOCK.format(worker), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(held, 20, 0).decode("ascii", "replace") or "?"
        raise OutputInUse(
            f"{output}: process {pid} trains in this folder; stop it, or set GPUBOX_OUTPUT to another"
        ) from None
    except OSError:
        return held
    os.ftruncate(held, 0)
    os.pwrite(held, str(os.getpid()).encode(), 0)
    return held
