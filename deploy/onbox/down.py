"""`fab down`: the keeper's stop, asked for by a person: runs, checkpoints, then the stop command."""

from __future__ import annotations

from typing import Any

from .armed import read_armed
from .places import find_places
from .refusal import Refusal
from .starts import allow_starts, forbid_starts
from .stopping_box import (
    live_ids,
    look_at_checkpoints,
    stop_runs,
    try_to_stop,
)


def down(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Request: {stop, grace, then}. Answer: {lines, accepted, text}; whether it worked can only
    be seen from outside. Without a `stop` (it comes from the laptop) runs and checkpoints only."""
    places = find_places(request)
    stop = request.get("stop") or (read_armed() or {}).get("stop") or {"how": "report"}
    if stop["how"] == "report" and not request.get("runs_only"):
        raise Refusal(
            "StopFailed",
            stop.get("effect", "no way to stop this box is known"),
            "set boxes.NAME.provider, or boxes.NAME.stop.command or from_laptop",
        )
    forbid_starts("fab down", 900.0)
    ids = live_ids(places)
    wire.event(text=f"stopping {len(ids)} run(s)")
    lines = stop_runs(places, ids, "down", "interrupted", float(request.get("grace", 120)))
    lines += look_at_checkpoints(places, ids) if ids else []
    for line in lines:
        wire.event(text=line)
    if request.get("runs_only") or stop["how"] == "laptop":
        return {"lines": lines, "accepted": False, "text": "the laptop stops it"}
    tried = try_to_stop(stop)
    if not tried.accepted:
        allow_starts()
    return {"lines": lines, "accepted": tried.accepted, "text": tried.text}


def try_notices(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Send a test notice to every channel and wait for what comes of it: {failed: [lines]}."""
    from .armed import read_channels
    from .notify import DEADLINE, Notice, Outbox

    failed: list[str] = []
    outbox = Outbox(find_places(request).home, failed.append)
    channels = request.get("channels") or read_channels()
    text = "A test: notices about {} arrive here.".format(request.get("box", "this box"))
    outbox.send(channels, Notice("gpubox: test", text, {"box": request.get("box", "")}))
    outbox.wait(DEADLINE + 2)
    return {"channels": [each["name"] for each in channels], "failed": failed}
