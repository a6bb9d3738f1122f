"""The user's own commands on the laptop (start, stop), with a deadline; and notices on its desktop."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence

from deploy.errors import StopFailed

SECONDS = 300.0


def run_own(command: Sequence[str], what: str) -> None:
    """Run a command of the config with its output shown; StopFailed where it fails."""
    try:
        done = subprocess.run(list(command), stdin=subprocess.DEVNULL, timeout=SECONDS)
    except OSError as no:
        raise StopFailed(f"{what}: {command[0]}: {no.strerror}", "is it installed here?") from no
    except subprocess.TimeoutExpired:
        raise StopFailed(f"{what}: {command[0]} did not end within {SECONDS:.0f} s", "") from None
    if done.returncode != 0:
        raise StopFailed(
            f"{what}: {command[0]} ended with {done.returncode}", "its words are above"
        )


def desktop_notice(title: str, text: str) -> bool:
    """A notice of the desktop; False where this machine has none."""
    command = notice_command(sys.platform, title, text)
    if not command or shutil.which(command[0]) is None:
        return False
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    return done.returncode == 0


def notice_command(platform: str, title: str, text: str) -> list[str]:
    """The desktop's program with the words as arguments of their own: none is ever a script."""
    if platform == "darwin":
        script = (
            "on run argv",
            "display notification (item 2 of argv) with title (item 1 of argv)",
            "end run",
        )
        return ["osascript", *(word for line in script for word in ("-e", line)), title, text]
    if platform == "win32":
        return ["msg", "*", "/time:60", f"{title}: {text}"]
    return ["notify-send", "--app-name=gpubox", "--", title, text]
