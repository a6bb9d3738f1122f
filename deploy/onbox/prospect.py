"""All that a deploy wants to know of a box, in one answer: facts, its runs, the images it has."""

from __future__ import annotations

from typing import Any

from .facts import facts
from .images import found as image_found
from .overview import summary
from .places import find_places
from .runs import list_runs


def prospect(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: `facts`, and of the `images` named the id and digest of each, and every run's summary."""
    found = facts(request, wire)
    found["runs"] = [summary(each) for each in list_runs(find_places(request))]
    wanted = request.get("images", []) if found["engine"]["answers"] else []
    found["images"] = {name: image_found(name) for name in wanted}
    return found
