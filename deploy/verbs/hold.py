"""`fab hold`: keeps a box awake for a while, with a reason; `--off` ends it."""

from __future__ import annotations

import getpass
from typing import Any

from deploy.errors import UsageError
from deploy.plan.keeper import parse_limit
from deploy.plan.quantities import show_duration
from deploy.verbs.desk import Desk


def hold(desk: Desk, time: str, why: str, off: bool) -> list[dict[str, Any]]:
    time, _, words = time.replace(",", " ").partition(" ")  # `fab hold 2h waiting for the labels`
    why = why or words
    seconds = 0.0 if off else parse_limit(time, "--time")
    if seconds is None:
        raise UsageError(
            "--time off: a hold without an end is no hold", "fab idle --stop-after off"
        )
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            held = box.call("hold", seconds=seconds, why=why, who=getpass.getuser())
        until = "no hold any more" if off else f"held for {show_duration(seconds)}"
        if held["armed"]:
            desk.show.done(f"{name}: {until}; lifetime and money cap hold all the same")
        else:
            desk.show.warn(
                f"{name}: {until}, but no keeper is armed: nothing stops this box, held or not "
                f"(fab idle --arm --host {name})"
            )
        results.append({"box": name, **held})
    return results
