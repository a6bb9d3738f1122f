"""PURE: which image a box needs, and how it gets there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from deploy.errors import ImageError

LABEL = "gpubox.inputs"  # on our images: a digest of everything they were built from
BASE = "gpubox/base:latest"  # what images/build.py begins with where it is there
ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class Bring(NamedTuple):
    """`keep` (the box has it), `ship` (from the laptop's engine) or `build` (on the box); and why."""

    action: str
    why: str


def plan_image(
    name: str, there: Mapping[str, str], inputs: str, engine: Mapping[str, Any] | None, machine: str
) -> Bring:
    """How the box gets the image that is built from `inputs`.

    there    {id, inputs} of the image of that name on the box; empty strings without one
    engine   the laptop's engine {architecture}; None where none answers
    machine  the box's `uname -m`
    """
    if there["id"] and there["inputs"] == inputs:
        return Bring("keep", "built from the same files")
    why = "built from other files" if there["id"] else "not on the box"
    if engine is None:
        return Bring("build", f"{why}; no engine here to build it with")
    if engine["architecture"] != ARCHITECTURES.get(machine, machine):
        return Bring(
            "build", f"{why}; this engine builds for {engine['architecture']}, not {machine}"
        )
    return Bring("ship", why)


def must_be_there(name: str, image: str, there: Mapping[str, str]) -> str:
    """The id of the user's own image on the box; ImageError where it is not there."""
    if not there["id"]:
        raise ImageError(
            f"{name}: the image {image} (run.image) is not on the box",
            f"docker save {image} | ssh {name} docker load",
        )
    return there["id"]
