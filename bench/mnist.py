"""MNIST for benches and tests: fetched once by name, checked by its checksums, kept in the cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deploy.effects.known_sets import fetch_known  # standard library only
from deploy.plan.known import MNIST


def folder() -> Path:
    """The folder with the four IDX files ($GPUBOX_TEST_MNIST, or below ~/.cache)."""
    chosen = os.environ.get("GPUBOX_TEST_MNIST")
    target = Path(chosen) if chosen else Path.home() / ".cache" / "gpubox" / "mnist"
    fetch_known(MNIST, target, lambda text: print(text, file=sys.stderr))
    return target
