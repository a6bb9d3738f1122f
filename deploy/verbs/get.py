"""`fab get`: fetch a public data set by name to the laptop, checked by its checksums."""

from __future__ import annotations

from typing import Any

from deploy.effects.known_sets import fetch_known
from deploy.effects.settings import beside_config
from deploy.errors import UsageError
from deploy.plan.known import KNOWN
from deploy.plan.quantities import show_size
from deploy.verbs.desk import Desk


def get(desk: Desk, name: str) -> dict[str, Any]:
    """Fetch the set to the path that the config names for it, else ~/.gpubox/sets/NAME."""
    if name not in KNOWN:
        raise UsageError(f"no public data set {name!r} is known", "known: " + ", ".join(KNOWN))
    wanted = KNOWN[name]
    configured = {str(key): each.path for key, each in desk.config.data.items()}
    target = beside_config(configured.get(name, f"~/.gpubox/sets/{name}"))
    size = show_size(sum(each.size for each in wanted.files))
    if desk.dry_run:
        desk.show.say(f"{name}: {len(wanted.files)} files, {size}, would be fetched to {target}")
        return {"name": name, "path": str(target), "fetched": False}
    desk.show.step(f"{name}: {size} to {target}")
    fetched = fetch_known(wanted, target, desk.show.note)
    desk.show.done(f"{name}: {'fetched' if fetched else 'there already'}, checksums right")
    return {"name": name, "path": str(target), "fetched": fetched}
