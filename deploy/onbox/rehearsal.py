"""Rehearses a stop without stopping: is the program there, may we run it, is the credential valid?"""

from __future__ import annotations

import os
import shutil
from typing import Any, Sequence

from .child import run_program
from .environment import fill_in, known_environment, names_in
from .facts import in_container

SECONDS = 30.0
POWER_OFF = {"shutdown", "poweroff", "halt", "reboot"}


def rehearse(stop: dict[str, Any]) -> list[str]:
    """What stands in the way of a stop, one line each; empty where it can be carried out.

    The ways to stop are alternatives: it is enough that one of them stands.
    """
    if stop["how"] != "inside":
        return []
    env = known_environment()
    ways = [command_problems(each, stop, env) for each in stop.get("commands", [])]
    ways += [call_problems(each, env) for each in stop.get("calls", [])]
    found = [] if any(not way for way in ways) else [line for way in ways for line in way]
    if not ways:
        found = ["no stop command"]
    return found + [line for each in stop.get("checks", []) for line in check_problems(each, env)]


def command_problems(
    command: Sequence[str], stop: dict[str, Any], env: dict[str, str]
) -> list[str]:
    words = [fill_in(word, env) for word in command]
    missing = missing_names(command, env)
    if missing:
        return missing
    if is_power_off(words) and in_container() and not stop.get("power_off_ends_bill"):
        return [
            f"{' '.join(words[:2])}: this box is a container: that would end the container "
            "at most, and not the bill"
        ]
    if words[0] == "sudo":
        return sudo_problems(words)
    return program_problems(words[0]) + [
        line for word in words[1:2] if words[0] in ("sh", "bash") for line in shell_problems(word)
    ]


def is_power_off(words: Sequence[str]) -> bool:
    return any(os.path.basename(word) in POWER_OFF for word in words[:4])


def sudo_problems(words: Sequence[str]) -> list[str]:
    rest = [word for word in words[1:] if not word.startswith("-")]
    if not shutil.which("sudo"):
        return ["sudo is not there"]
    allowed = run_program(["sudo", "-n", "-l", "--", *rest], SECONDS)
    if allowed.code != 0:
        return [f"sudo does not allow `{' '.join(rest)}` without a password"]
    return program_problems(rest[0])


def program_problems(name: str) -> list[str]:
    path = shutil.which(name)
    if path is None:
        there = os.path.exists(name)
        return [f"{name}: not executable (chmod +x)" if there else f"{name}: not there"]
    return script_problems(path)


def shell_problems(word: str) -> list[str]:
    """Of what stands after `sh` or `bash`: a script, or options, which are not looked at."""
    return [] if word.startswith("-") else script_problems(word, b"")


def script_problems(path: str, begins: bytes = b"#!") -> list[str]:
    """Windows line ends in a script's first line make the kernel look for `sh\\r`."""
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError as no:
        return [f"{path}: {no.strerror}"]
    if first.startswith(begins) and first.rstrip(b"\n").endswith(b"\r"):
        return [f"{path}: has CRLF line ends: convert it (sed -i 's/\\r$//')"]
    return []


def missing_names(texts: Sequence[str], env: dict[str, str]) -> list[str]:
    found = []
    for name in [name for text in texts for name in names_in(text)]:
        if name.startswith("file:"):
            path = os.path.expanduser(name[5:])
            if not os.access(path, os.R_OK):
                found.append(f"{path}: can't be read (it has to hold the key, mode 0600)")
            elif os.stat(path).st_mode & 0o077:
                found.append(f"{path}: others may read it (chmod 600)")
        elif not env.get(name):
            found.append(f"{name} is not in the environment of this box")
    return found


def call_problems(call: dict[str, Any], env: dict[str, str]) -> list[str]:
    """A call's dry run is a GET of the thing that it would stop: that shows address and key."""
    parts = [call["url"], call.get("body", ""), *call.get("headers", {}).values()]
    missing = missing_names(parts, env)
    if missing or not call.get("rehearse"):
        return missing
    from .stopping_box import try_call

    tried = try_call({**call, "method": "GET", "url": call["rehearse"], "body": ""}, env)
    return [] if tried.accepted else [tried.text]


def check_problems(check: dict[str, Any], env: dict[str, str]) -> list[str]:
    """A command whose answer forbids the stop: {command, forbidden, says, unknown}."""
    ended = run_program([fill_in(word, env) for word in check["command"]], SECONDS, env)
    if ended.code != 0:
        return [check["unknown"]] if check.get("unknown") else []
    return [check["says"]] if check["forbidden"] in ended.text else []
