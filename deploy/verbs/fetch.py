"""`fab fetch`: checkpoints, logs and results come home whole, once or for as long as a run goes on."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.homecoming import Homecoming
from deploy.effects.settings import beside_config
from deploy.errors import ConnectError, LinkLost, NoSuchRun
from deploy.plan.fetch import choice, interval, newest, summary
from deploy.verbs.desk import Desk

ENDED = ("finished", "failed", "stopped", "interrupted")
TRIES = 5


def fetch(
    desk: Desk,
    run: str = "",
    follow: bool = False,
    best: bool = False,
    last: bool = False,
    all: bool = False,
    logs_only: bool = False,
    every: str = "",
    to: str = "",
) -> list[dict[str, Any]]:
    which, pause = choice(best, last, all, logs_only), interval(every)
    results = []
    for name in desk.hosts:
        target = Path(to) if to else beside_config("home")
        errand = Errand(desk, name, target, which)
        results.append({"box": name, **(errand.follow(run, pause) if follow else errand.once(run))})
    return results


class Errand:
    """Fetches from one box into one folder, over lost links."""

    def __init__(self, desk: Desk, name: str, target: Path, which: str) -> None:
        self._desk, self._name, self._target, self._which = desk, name, target, which
        self._told = ""

    def once(self, run: str) -> dict[str, Any]:
        """What is there now; a link that breaks off is opened again, and it goes on."""
        for number in range(1, TRIES + 1):
            try:
                with self._desk.open(self._name) as box:
                    return self._fetch(box, run)
            except (LinkLost, ConnectError) as no:
                if number == TRIES or (number == 1 and isinstance(no, ConnectError)):
                    raise
                self._desk.show.note(f"{no.message}; going on in {number * 2} s")
                time.sleep(number * 2)
        raise AssertionError("unreachable")

    def follow(self, run: str, pause: float) -> dict[str, Any]:
        """Until the run has ended; links and boxes may come and go meanwhile."""
        total: dict[str, Any] = {}
        while True:
            try:
                got = self.once(run)
                run = got["id"]
                total = {**got, "steps": [*total.get("steps", []), *got["steps"]]}
                if got["state"] in ENDED and not got["goes_on"]:
                    return total
            except (LinkLost, ConnectError) as no:
                if not total:
                    raise
                self._desk.show.note(f"{no.message}; next try in {pause:.0f} s")
            time.sleep(pause)

    def _fetch(self, box: Agent, run: str) -> dict[str, Any]:
        run = self._exact(box, run)
        folder = self._target / run
        with self._desk.show.progress(f"fetch {run}", None) as bar:
            errand = Homecoming(folder, bar.advance)
            got = errand.receive(box, run, self._which, files=True)
        got["removed"] = errand.make_room(self._which, self._desk.config.fetch.keep)
        self._tell_home(box, run, newest(errand.steps()))
        self._desk.show.done(f"{run}: {summary(got)}")
        state = got["begin"]["state"]
        if not errand.steps() and self._which != "none":
            yet = (
                "has published no checkpoint"
                if state["state"] in ENDED
                else "has no checkpoint yet"
            )
            self._desk.show.warn(f"{run} {yet}; its other files are in {folder / 'output'}")
        kept = {key: got[key] for key in ("steps", "kept", "dropped", "removed", "files", "bytes")}
        goes_on = got["begin"]["goes_on"]
        return {
            "id": run,
            "folder": str(folder),
            "state": state["state"],
            "goes_on": goes_on,
            **kept,
        }

    def _exact(self, box: Agent, run: str) -> str:
        if run not in ("", "last"):
            return run
        runs = box.call("status")["runs"]
        if not runs:
            raise NoSuchRun(f"{self._name}: no run yet", "start one: fab launch")
        return str(runs[-1]["id"])

    def _tell_home(self, box: Agent, run: str, step: str) -> None:
        """The box learns what is home, so that `fab down` and the keeper know it."""
        if step and step != self._told:
            box.call("home", run=run, step=int(step[5:]), where=socket.gethostname())
            self._told = step
