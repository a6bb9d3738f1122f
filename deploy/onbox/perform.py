"""Runs one command of a bootstrap step, by sudo where it must, and tells each line as it comes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import Any

from .activity import active
from .reach import without_login
from .refusal import Refusal
from .survey import lock_holders

KEPT = 30  # lines of output that the answer carries
LOCK_SECONDS = 900


def perform(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """`argv` (no shell), `root`, `stdin` (text), `seconds`; Refusal with its last line if it fails."""
    argv = [str(word) for word in request["argv"]]
    with active("bootstrap"):
        if argv[0].startswith("apt") or "apt-get" in argv:
            wait_for_locks(wire)
        code, lines = run(as_root(argv) if request.get("root") else argv, request, wire)
    if code != 0:
        said = (lines or ["nothing"])[-1]
        raise Refusal(
            "BoxUnfit",
            "{} ended with {}: {}".format(" ".join(argv)[:80], code, said),
            "mend that on the box, then run the same command again",
        )
    return {"lines": lines}


def as_root(argv: list[str]) -> list[str]:
    return argv if os.getuid() == 0 else ["sudo", "-n", "--", *argv]


def wait_for_locks(wire: Any) -> None:
    """A new machine often installs updates by itself: wait for that, and say for whom."""
    deadline = time.monotonic() + LOCK_SECONDS
    told: list[str] = []
    while holders := lock_holders():
        if time.monotonic() > deadline:
            raise Refusal(
                "Busy", "apt is locked by " + ", ".join(holders), "wait for it, or end it by hand"
            )
        if holders != told:
            wire.event(line="waiting for apt's lock: " + ", ".join(holders))
            told = holders
        time.sleep(1)


def run(argv: list[str], request: dict[str, Any], wire: Any) -> tuple[int, list[str]]:
    """Exit code and last lines of a command; killed after `seconds`."""
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdin and process.stdout
    timer = threading.Timer(float(request.get("seconds", 1800)), process.kill)
    timer.start()
    lines: list[str] = []
    try:
        process.stdin.write(str(request.get("stdin", "")).encode())
        process.stdin.close()
        for raw in process.stdout:
            line = without_login(raw.decode(errors="replace").rstrip())
            if line:
                wire.event(line=line[:200])
                lines = [*lines[1 - KEPT :], line]
        return process.wait(), lines
    finally:
        timer.cancel()
