"""Stages a data set in the background while the image is made; whoever needs it waits at its lock."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from .launch import start_detached
from .places import find_places, own_folder
from .stage import stage_version


def stage_ahead(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: begin to stage version `version` of `name`, and answer at once.

    What goes wrong there is told by whoever stages it next: a fault is none of this verb's.
    """
    wanted = json.dumps({key: request.get(key) for key in ("folders", "name", "version")})
    start_detached("staging_ahead", wanted, os.path.join(own_folder(), "staging.log"))
    return {"began": True}


def _stage(wanted: dict[str, Any]) -> None:
    stage_version(find_places(wanted), wanted["name"], wanted["version"])


if __name__ == "__main__":
    _stage(json.loads(sys.argv[1]))
