"""`fab shell`: a terminal on the box, by the same SSH settings and host keys as everything else."""

from __future__ import annotations

import os
import shutil
import subprocess

from deploy.errors import BoxUnfit
from deploy.verbs.desk import Desk
from deploy.verbs.forward import only_box


def shell(desk: Desk, command: str = "") -> int:
    """A login shell there, or `command` with a terminal; returns its exit code.

    The connection of ours is opened first, so that an unknown or changed host key is met by the
    kit's own rules and not by the system's ssh.
    """
    name = only_box(desk, "shell")
    with desk.open(name) as box:
        arguments = box.link.terminal(command)
    if desk.dry_run:
        desk.show.say(" ".join(arguments))
        return 0
    if shutil.which(arguments[0]) is None:
        raise BoxUnfit(f"{arguments[0]} is not installed on this machine", "install OpenSSH")
    return subprocess.call(arguments, env={**os.environ, "TERM": os.environ.get("TERM", "dumb")})
