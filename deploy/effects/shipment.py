"""An image of the laptop's engine as frames for a box."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from deploy.effects.engine import saves_by_layer
from deploy.effects.settings import laptop_folder
from deploy.errors import error_named
from deploy.onbox.layers import image_frames, saved_image
from deploy.onbox.refusal import Refusal


def frames_from_here(
    tag: str,
    image: Mapping[str, Any],
    wanted: Mapping[str, int],
    told: Callable[[int], None],
    level: int,
    indexed: bool,
) -> Iterator[bytes]:
    """As deploy/onbox/layers.py says."""
    try:
        with saved_image(tag, image, saves_by_layer(), str(laptop_folder())) as saved:
            yield from image_frames(tag, saved, image, wanted, told, level, indexed)
    except Refusal as no:
        raise error_named(no.kind)(no.message, no.hint) from no
