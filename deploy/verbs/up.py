"""`fab up`: starts a box by the user's own command, waits for SSH, and looks whether it is armed."""

from __future__ import annotations

import time
from typing import Any

from deploy.effects.commands import run_own
from deploy.effects.link import LocalLink
from deploy.errors import StopFailed
from deploy.plan.keeper import status_line
from deploy.verbs.desk import Desk
from deploy.verbs.down import answers, until
from deploy.verbs.idle import arm_keeper, say_armed

ON_SECONDS = 600.0


def up(desk: Desk) -> list[dict[str, Any]]:
    results = []
    for name in desk.hosts:
        config = desk.box(name)
        if desk.dry_run:
            desk.show.say(f"{name}: would run {' '.join(config.stop.start) or 'nothing'}")
            continue
        if not answers(desk, name):
            if not config.stop.start:
                raise StopFailed(
                    f"{name}: off, and no command to start it",
                    f"set boxes.{name}.stop.start, or start it in the provider's console",
                )
            run_own(config.stop.start, f"{name}: start")
            desk.show.step(f"{name}: started; waiting for SSH")
            if not until(lambda: answers(desk, name), ON_SECONDS):  # noqa: B023 - used at once
                raise StopFailed(f"{name}: no SSH within {ON_SECONDS:.0f} s", "look at its console")
        with desk.open(name) as box:
            answer = box.call("idle")
            if not answer["armed"] and not isinstance(box.link, LocalLink):
                say_armed(desk, name, arm_keeper(desk, box, config))
                answer = box.call("idle")
        line = status_line(answer, time.time())
        desk.show.done(f"{name}: on; {line}")
        results.append({"box": name, "on": True, "line": line})
    return results
