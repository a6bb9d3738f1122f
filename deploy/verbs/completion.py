"""`fab completion SHELL`: the script for the shell; `fab names`: what it completes with."""

from __future__ import annotations

import re
from pathlib import Path

from deploy.effects.fetched import home_of_runs, is_run
from deploy.effects.settings import beside_config
from deploy.errors import UsageError
from deploy.plan.help import KINDS, completion
from deploy.verbs.desk import Desk

INSTALL = {
    "bash": 'eval "$(fab completion bash)"    # in ~/.bashrc, or in this shell',
    "zsh": 'eval "$(fab completion zsh)"    # in ~/.zshrc, or in this shell',
    "fish": "fab completion fish | source    # in ~/.config/fish/config.fish, or in this shell",
}


def completion_script(desk: Desk, shell: str) -> list[dict[str, str]]:
    """The script on stdout, ready for the shell; with --json as a string."""
    script = completion(shell)
    if script is None:
        raise UsageError(f"completion: expected bash, zsh or fish, got {shell!r}", INSTALL["bash"])
    if not desk.show.machine:
        desk.show.raw(script)
    desk.show.note(INSTALL[shell])
    return [{"shell": shell, "script": script}]


def names(desk: Desk, kind: str) -> list[str]:
    """The boxes, data sets or fetched runs that there are, one a line."""
    if kind not in KINDS:
        raise UsageError(f"--kind: expected {', '.join(KINDS)}, got {kind!r}", "")
    found = {"boxes": boxes_of, "data": lambda desk: list(desk.config.data), "runs": runs_of}
    # bash expands what it completes with: a run's folder may have any name
    listed = [each for each in found[kind](desk) if re.fullmatch(r"[\w.-]+", each)]
    for each in listed:
        desk.show.say(each)
    return listed


def boxes_of(desk: Desk) -> list[str]:
    """From gpubox.toml, then those of the ssh config."""
    config = desk.config.ssh_config
    path = beside_config(config) if config else Path("~/.ssh/config").expanduser()
    hosts: list[str] = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            keyword, _, rest = line.strip().partition(" ")
            if keyword.lower() == "host":
                hosts += rest.split()
    return list(dict.fromkeys([*desk.config.boxes, *hosts]))


def runs_of(desk: Desk) -> list[str]:
    """Those that have been fetched."""
    home = home_of_runs()
    return sorted(each.name for each in home.glob("*") if is_run(each)) if home.is_dir() else []
