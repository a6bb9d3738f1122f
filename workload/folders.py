"""Where the kit tells a program to read and write: three environment variables."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple


class Folders(NamedTuple):
    """input: the staged data set; output: the run's folder; scratch: fast and local."""

    input: Path
    output: Path
    scratch: Path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are published."""
        return self.output / "checkpoints"


def folders() -> Folders:
    """From GPUBOX_INPUT (default /input), GPUBOX_OUTPUT (/output), GPUBOX_SCRATCH (temporary)."""
    scratch = os.environ.get("GPUBOX_SCRATCH") or tempfile.gettempdir()
    return Folders(
        Path(os.environ.get("GPUBOX_INPUT") or "/input"),
        Path(os.environ.get("GPUBOX_OUTPUT") or "/output"),
        Path(scratch),
    )
