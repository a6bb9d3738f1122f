"""PURE: which layers of an image travel to a box, and from which chunk on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deploy.onbox.imagefiles import CHUNK, FAST_LINE


def deflate_level(rate: float) -> int:
    """zlib's level to begin with on a line of so many bytes per second: 1, or 0 (stored) on a fast one."""
    return 0 if rate > FAST_LINE else 1


def known_layers(ours: Sequence[str], theirs: Iterable[Sequence[str]]) -> int:
    """How many of the image's first layers some image on the box begins with.

    Only leading ones count: `docker load` finds a layer by itself and all below it.
    """
    longest = 0
    for layers in theirs:
        same = 0
        for mine, other in zip(ours, layers, strict=False):
            if mine != other:
                break
            same += 1
        longest = max(longest, same)
    return longest


def plan_shipment(
    ours: Sequence[str], theirs: Iterable[Sequence[str]], spooled: Mapping[str, int]
) -> dict[str, int]:
    """{layer: chunks of it that lie on the box from an earlier try}, for each layer that travels.

    ours, theirs  layers as `docker inspect` lists them, lowest first: our image's, and those of
                  every image on the box
    """
    begun = known_layers(ours, theirs)
    known = set(ours[:begun])
    return {layer: spooled.get(layer, 0) for layer in ours[begun:] if layer not in known}


def why_these(ours: Sequence[str], wanted: Mapping[str, int]) -> str:
    """The plan in words: "2 of 9 layers, the others are on the box; goes on after 48 MiB"."""
    total = len(set(ours))
    words = f"all {total} layers" if len(wanted) == total else f"{len(wanted)} of {total} layers"
    if len(wanted) < total:
        words += ", the others are on the box"
    there = sum(wanted.values()) * CHUNK
    return words + (f"; goes on after {there >> 20} MiB" if there else "")


# What of an image's config says what its containers are; engines differ in the rest of `inspect`.
CONFIG = ("Cmd", "Entrypoint", "Env", "Labels", "StopSignal", "User", "WorkingDir")


def same_image(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether two `docker image inspect` are of one image, also where the engines' stores differ.

    The containerd image store calls an image by the digest of its manifest, Docker's own by that of
    its config: the same image then has two ids.
    """
    return bool(theirs) and _identity(ours) == _identity(theirs)


def _identity(told: Mapping[str, Any]) -> list[Any]:
    config = told.get("Config") or {}
    layers = (told.get("RootFS") or {}).get("Layers")
    said = [config.get(name) or None for name in CONFIG]
    return [layers, told.get("Created"), told.get("Os"), told.get("Architecture"), *said]
