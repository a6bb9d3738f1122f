"""`fab logs`: a run's output; --follow goes on over lost links, where it was."""

from __future__ import annotations

import time
from typing import Any

from deploy.effects.copies import copy_path, keep_copy, last_copy, write_atomically
from deploy.errors import ConnectError, KilledThere, KitError, LinkLost, RunFailed
from deploy.plan.quantities import show_size, show_time
from deploy.plan.run import state_line
from deploy.verbs.desk import Desk

RETRY = (1, 2, 5, 10, 30)  # seconds; the last one again and again


def logs(desk: Desk, run: str = "", lines: int = 100, follow: bool = False) -> list[dict[str, Any]]:
    results = []
    for name in desk.hosts:
        if follow:
            results.append({"box": name, **follow_run(desk, name, run, lines)})
            continue
        try:
            results.append({"box": name, **_last_lines(desk, name, run, lines)})
        except (ConnectError, LinkLost) as no:
            results.append({"box": name, **_from_copy(desk, name, run, no)})
    return results


def _last_lines(desk: Desk, name: str, run: str, lines: int) -> dict[str, Any]:
    printer = Printer(desk)
    with desk.open(name) as box:
        answer = box.call("logs", printer.take, run=run, lines=lines)
    printer.finish()
    text = "".join(printer.kept)
    for key in {run or "last", answer["id"]}:
        keep_copy(name, f"logs/{key}.json", {"id": answer["id"], "state": answer["state"]})
        write_atomically(copy_path(name, f"logs/{key}.log"), text.encode("utf-8", "replace"))
    return {"id": answer["id"], "state": answer["state"]["state"], "text": text}


def _from_copy(desk: Desk, name: str, run: str, no: KitError) -> dict[str, Any]:
    key = run or "last"
    copy = last_copy(name, f"logs/{key}.json")
    if copy is None:
        raise no
    text = copy_path(name, f"logs/{key}.log").read_text(encoding="utf-8")
    desk.show.warn(f"{no.message}; the copy of {show_time(copy[0], time.time())}:")
    for line in text.splitlines():
        desk.show.say(line)
    return {"id": copy[1]["id"], "state": copy[1]["state"]["state"], "text": text}


class Printer:
    """Prints output as it comes, line by line; knows where it is, so that it can go on."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self._rest = desk, ""
        self.next = -1
        self.kept: list[str] = []

    def take(self, event: dict[str, Any]) -> None:
        if "waits" in event:
            self._desk.show.note(f"{event['waits']}; the box resumes it by itself")
        if "next" not in event:
            return
        self.next = event["next"]
        if event.get("dropped"):
            self._desk.show.note(f"({show_size(event['dropped'])} of output were not kept)")
            return
        text = event["text"].replace("\r\n", "\n").replace("\r", "\n")
        self.kept = [*self.kept[-2000:], text]
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            self._desk.show.say(line)

    def finish(self) -> None:
        if self._rest:
            self._desk.show.say(self._rest)
            self._rest = ""


def follow_run(desk: Desk, name: str, run: str = "", lines: int = 100) -> dict[str, Any]:
    """Print until the run ends; Ctrl-C leaves it running."""
    printer, failures, reached_once = Printer(desk), 0, False
    while True:
        reached = printer.next
        try:
            with desk.open(name) as box:
                reached_once = True
                request: dict[str, Any] = {
                    "run": run,
                    "lines": lines,
                    "offset": printer.next,
                    "follow": True,
                }
                answer = box.call("logs", printer.take, **request)
            break
        except (ConnectError, LinkLost, KilledThere) as no:
            if not reached_once:
                raise
            failures = 0 if printer.next > reached else failures + 1
            pause = RETRY[min(failures, len(RETRY) - 1)]
            desk.show.note(f"{no.message}; the run goes on, next try in {pause} s")
            time.sleep(pause)
    printer.finish()
    desk.show.note(f"{answer['id']}: {state_line(answer['state'])}")
    return {"id": answer["id"], "state": answer["state"]["state"]}


def follow_to_the_end(desk: Desk, name: str, run: str) -> None:
    """Print until the run ends; RunFailed unless it finished, so that scripts can rely on it."""
    ended = follow_run(desk, name, run)
    if ended["state"] != "finished":
        raise RunFailed(f"{run} is {ended['state']}", f"fab status --host {name} --run {run}")
