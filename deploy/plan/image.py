"""PURE: which image a box needs, and how it gets there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from deploy.errors import ImageError

LABEL = "gpubox.inputs"  # on our images: a digest of everything they were built from
BASE = "gpubox/base:latest"  # what images/build.py begins with where it is there
ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


# What our images are on the line (deflated, measured), and how long one is sent before the box's own
# line to the package mirrors is taken to be the better one.
ON_THE_LINE = {"cpu": 0.34e9, "gpu": 3.2e9, "notebook": 0.4e9}  # bytes
PATIENCE = 600.0  # s


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


def by_the_better_line(bring: Bring, device: str, known: int, rate: float) -> Bring:
    """`ship` becomes `build` where a first image would take too long over this line.

    known  leading layers of some image of ours that the box has (only what lies above travels)
    rate   bytes per second of the line, as tried just now
    """
    seconds = ON_THE_LINE[device] / max(rate, 1.0)
    if bring.action != "ship" or known > 1 or seconds <= PATIENCE:
        return bring
    why = f"{bring.why}; over this line it would take {seconds / 60:.0f} min"
    return Bring("build", why)


def must_be_there(name: str, image: str, there: Mapping[str, str]) -> str:
    """The id of the user's own image on the box; ImageError where it is not there."""
    if not there["id"]:
        raise ImageError(
            f"{name}: the image {image} (run.image) is not on the box",
            f"docker save {image} | ssh {name} docker load",
        )
    return there["id"]
