"""The supervisor: one small process per run; starts it, watches it, says why it ended.

`python3 -m onbox.supervise RUN_FOLDER`, detached from whoever started it.
"""

from __future__ import annotations

import signal
import sys
import traceback
from typing import Any

from .attempt import Attempt
from .places import Places
from .runs import ALIVE, claim, read_run, read_state


def places_of(run: dict[str, Any]) -> Places:
    """The folders as they were when the run was made."""
    kept = run["places"]
    return Places(kept["data"], kept["input"], kept["runs"], kept["home"], [])


def supervise(folder: str) -> None:
    """One attempt of a run, from its present state to an end (or back into the queue)."""
    run = read_run(folder)
    places = places_of(run)
    with claim(places, run["id"], supervises=True) as ours:
        if not ours:
            return
        attempt = Attempt(places, folder, run)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the shell that started us ignores it
        signal.signal(signal.SIGTERM, lambda *_: attempt.ask_to_stop())
        try:
            _one_attempt(attempt, folder)
        finally:
            attempt.leases.release()
    from .tending import tend

    tend(places)


def _one_attempt(attempt: Attempt, folder: str) -> None:
    try:
        if read_state(folder)["state"] in ALIVE:
            attempt.adopt()
        elif not attempt.begin():
            return
        attempt.watch()
        attempt.settle()
    except Exception as fault:
        traceback.print_exc()
        attempt.give_up(fault)


if __name__ == "__main__":
    supervise(sys.argv[1])
