"""Stages a data set in the background while the image is made; whoever needs it waits at its lock."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from .launch import start_detached
from .places import Places, find_places
from .stage import stage_version


def stage_ahead(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: begin to stage version `version` of `name`, and answer at once.

    What goes wrong there is told by whoever stages it next: a fault is none of this verb's.
    """
    places = find_places(request)
    work = json.dumps({**places._asdict(), "name": request["name"], "version": request["version"]})
    start_detached("staging_ahead", work, os.path.join(places.home, "staging.log"))
    return {"began": True}


def _stage(work: dict[str, Any]) -> None:
    places = Places(work["data"], work["input"], work["runs"], work["home"], [])
    stage_version(places, work["name"], work["version"])


if __name__ == "__main__":
    _stage(json.loads(sys.argv[1]))
