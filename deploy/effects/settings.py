"""Finds and reads the user's gpubox.toml."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from deploy.errors import ConfigError
from deploy.plan.config import Config, read_config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def config_path() -> Path | None:
    """$GPUBOX_CONFIG, else gpubox.toml in this folder or one above it; None where there is none."""
    named = os.environ.get("GPUBOX_CONFIG")
    if named:
        return Path(named)
    here = Path.cwd()
    return next(
        (p / "gpubox.toml" for p in [here, *here.parents] if (p / "gpubox.toml").is_file()), None
    )


def load_config() -> Config:
    """The config; the defaults where there is no file. ConfigError names file, path and remedy."""
    return read_config(load_document())


def load_document() -> dict[str, Any]:
    """gpubox.toml as it is written; empty where there is no file."""
    path = config_path()
    if path is None:
        return {}
    try:
        return dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as no:
        raise ConfigError(
            f"{path}: {no.strerror}", "set GPUBOX_CONFIG to a file that exists"
        ) from no
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as no:
        raise ConfigError(
            f"{path}: not TOML: {no}", "see gpubox.toml of the kit for an example"
        ) from no


def root() -> Path:
    """The clone of the kit."""
    return Path(__file__).resolve().parents[2]


def beside_config(path: str) -> Path:
    """A path from the config: `~` is the home, relative ones start at the config's folder."""
    found = config_path()
    base = found.parent if found else Path.cwd()
    return base / Path(path).expanduser()


def laptop_folder() -> Path:
    """~/.gpubox of the laptop ($GPUBOX_HOME): caches, last known states, what is home."""
    path = Path(os.environ.get("GPUBOX_HOME") or "~/.gpubox").expanduser()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
