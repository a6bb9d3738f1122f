"""`fab demo`: the whole way on this machine, with both bundled programs, in about three minutes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.errors import ImageError
from deploy.plan.config import Config
from deploy.verbs.deploy import deploy_to
from deploy.verbs.desk import Desk
from deploy.verbs.fetch import fetch
from deploy.verbs.get import get
from deploy.verbs.logs import follow_to_the_end

BOX = "local"
PROGRAMS = {"bp": "--steps 3000", "cnn": "--steps 300"}


def demo(desk: Desk) -> list[dict[str, Any]]:
    """Fetch MNIST, deploy both programs to `local` one after the other, bring their results home."""
    get(desk, "mnist")
    results = [train(desk, model, arguments) for model, arguments in PROGRAMS.items()]
    if desk.dry_run:
        return results
    rows = [
        (each["id"], each["state"], f"{each['test_accuracy']:.2%}", each["folder"])
        for each in results
    ]
    desk.show.table(["run", "state", "test accuracy", "fetched to"], rows)
    desk.show.say("What next:")
    desk.show.say(f"  fab compare --runs {','.join(each['id'] for each in results)}")
    desk.show.say(
        "  fab doctor --host gpu-box     is a rented box ready? (any name that ssh knows)"
    )
    desk.show.say("  fab deploy --host gpu-box     the same there, on its GPU")
    return results


def train(desk: Desk, model: str, arguments: str) -> dict[str, Any]:
    """One program: deploy, follow to its end, fetch; what its result.json says."""
    run = replace(desk.config.run, command=("python", "-m", "workload", model), args=())
    own = replace(desk, hosts=[BOX], config=replace(desk.config, run=run))
    started = deploy_here(own, arguments)
    if desk.dry_run:
        return started
    follow_to_the_end(own, BOX, started["id"])
    home = fetch(own, started["id"])[0]
    result = json.loads((Path(home["folder"]) / "output" / "result.json").read_text())
    return {
        "id": started["id"],
        "state": "finished",
        "folder": home["folder"],
        "test_accuracy": result["test_accuracy"],
    }


def deploy_here(desk: Desk, arguments: str) -> dict[str, Any]:
    """In a container where an engine answers and an image can be had, else as a plain process."""
    with desk.open(BOX) as box:
        try:
            return deploy_to(desk, BOX, box, "mnist", arguments, "0", "cpu", True)
        except ImageError as no:
            desk.show.warn(f"{no.message}; as a plain process instead")
            desk = replace(desk, config=as_process(desk.config))
            return deploy_to(desk, BOX, box, "mnist", arguments, "0", "cpu", True)


def as_process(config: Config) -> Config:
    """The same config with the process runner for this machine."""
    boxes = {**config.boxes}
    boxes.update({key: replace(box, runner="process") for key, box in boxes.items() if key == BOX})
    return replace(config, boxes=boxes)
