"""`fab shell`: a terminal on the box, by the same SSH settings and host keys as everything else."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import Any

from deploy.errors import BoxUnfit, RunFailed
from deploy.verbs.desk import Desk
from deploy.verbs.forward import only_box


def shell(desk: Desk, command: str = "", run: str = "") -> int:
    """A login shell there, or `command` with a terminal; with `run` inside that run's container,
    or in its folder where it is a process. Returns its exit code.

    The connection of ours is opened first, so that an unknown or changed host key is met by the
    kit's own rules and not by the system's ssh.
    """
    name = only_box(desk, "shell")
    with desk.open(name) as box:
        inside = inside_run(box.call("status", run=run)["runs"][0], command) if run else command
        arguments = box.link.terminal(inside)
    if desk.dry_run:
        desk.show.say(" ".join(arguments))
        return 0
    if shutil.which(arguments[0]) is None:
        raise BoxUnfit(f"{arguments[0]} is not installed on this machine", "install OpenSSH")
    return subprocess.call(arguments, env={**os.environ, "TERM": os.environ.get("TERM", "dumb")})


def inside_run(record: dict[str, Any], command: str) -> str:
    """One line for any login shell; RunFailed where a container is asked for and is gone."""
    words = ["/bin/sh", *(["-c", command] if command else [])]
    if record["run"]["runner"] == "process":
        return in_shell(f"cd {shlex.quote(record['folder'])} && exec {shlex.join(words)}")
    if record["state"]["state"] not in ("running", "stopping"):
        raise RunFailed(
            f"{record['id']} is {record['state']['state']}: it has no container", "fab shell"
        )
    container = f'"$(docker ps -q --filter label=gpubox.run={record["id"]})"'
    terminal = "-i$(test -t 0 && echo t)"  # a command may come without one, as from a script
    return in_shell(f"exec docker exec {terminal} {container} {shlex.join(words)}")


def in_shell(script: str) -> str:
    return f"exec /bin/sh -c {shlex.quote(script)}"
