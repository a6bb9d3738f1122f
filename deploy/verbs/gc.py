"""`fab gc`: clear away old runs, images, staged versions; --dry-run says what each would free."""

from __future__ import annotations

from typing import Any

from deploy.plan.quantities import show_size
from deploy.verbs.desk import Desk


def gc(desk: Desk, days: int = 30) -> list[dict[str, Any]]:
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            found = box.call("gc", lambda event: note(desk, event), days=days, dry_run=desk.dry_run)
        items = sorted(found["items"], key=lambda item: (item["verdict"], -item["bytes"]))
        rows = [
            (item["verdict"], item["kind"], item["name"], show_size(item["bytes"]), item["why"])
            for item in items
        ]
        desk.show.table(["", "what", "", "size", "why"], rows, title=name)
        freed = sum(item["bytes"] for item in items if item["verdict"] == "remove")
        said = "would free" if desk.dry_run else "freed"
        desk.show.done(f"{name}: {said} {show_size(freed)}")
        results.append({"box": name, "items": items, "bytes": freed})
    return results


def note(desk: Desk, event: dict[str, Any]) -> None:
    if "doing" in event:
        desk.show.note(event["doing"])
