"""Where `ssh NAME` would go and how: the settings as the system's own ssh resolves them."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import paramiko

from deploy.errors import ConnectError


class Target(NamedTuple):
    """One end of a connection, as `ssh -G NAME` says it."""

    name: str
    host: str
    port: int
    user: str
    identities: tuple[str, ...]
    identities_only: bool
    agent: str  # a socket's path, "SSH_AUTH_SOCK" or "none"
    jump: str  # ProxyJump's value, "" without one
    proxy_command: str  # its tokens (%h, %p, …) filled in
    known_hosts: tuple[str, ...]  # read in this order; new keys go to the first
    key_alias: str
    hash_names: bool
    ciphers: tuple[str, ...] = ()  # that ssh may use, in its order of preference

    @property
    def key_name(self) -> str:
        """The name under which known-hosts files have this host's key."""
        if self.key_alias:
            return self.key_alias
        return self.host if self.port == 22 else f"[{self.host}]:{self.port}"


def ssh_options(config_file: str, user: str, port: int) -> list[str]:
    """The options that give the system's ssh the same settings as ours."""
    options = ["-F", config_file] if config_file else []
    options += ["-l", user] if user else []
    return options + (["-p", str(port)] if port else [])


def resolve(name: str, config_file: str = "", user: str = "", port: int = 0) -> Target:
    """The settings of the system's ssh for a name; paramiko's own reading where there is no ssh."""
    if shutil.which("ssh") is None:
        return _resolve_without_ssh(name, config_file, user, port)
    command = ["ssh", "-G", *ssh_options(config_file, user, port), "--", name]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConnectError(
            f"{name}: ssh -G failed: {why}", f"mend {config_file or '~/.ssh/config'}"
        )
    return parse_settings(name, done.stdout)


def parse_settings(name: str, text: str) -> Target:
    """`ssh -G`'s lines (`key value`, keys may repeat) as a Target."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value)

    def one(key: str, default: str = "") -> str:
        return found.get(key, [default])[0]

    def unless_none(key: str) -> str:
        return "" if one(key).lower() == "none" else one(key)

    host, port, user = one("hostname", name), one("port", "22"), one("user", getpass.getuser())
    tokens = {"h": host, "p": port, "r": user, "n": name, "u": getpass.getuser()}
    tokens |= {"d": os.path.expanduser("~"), "%": "%", "k": one("hostkeyalias", name)}
    return Target(
        name=name,
        host=host,
        port=int(port),
        user=user,
        identities=tuple(
            os.path.expanduser(expand(each, tokens)) for each in found.get("identityfile", [])
        ),
        identities_only=one("identitiesonly") == "yes",
        agent=os.path.expanduser(expand(one("identityagent", "SSH_AUTH_SOCK"), tokens)),
        jump=unless_none("proxyjump"),
        proxy_command=expand(unless_none("proxycommand"), tokens),
        known_hosts=_known_hosts(one("userknownhostsfile"), one("globalknownhostsfile"), tokens),
        key_alias=unless_none("hostkeyalias"),
        hash_names=one("hashknownhosts") == "yes",
        ciphers=tuple(filter(None, one("ciphers").split(","))),
    )


def expand(text: str, tokens: dict[str, str]) -> str:
    """ssh's %-tokens filled in; one that is not known here stays as it is."""
    return re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)


def _known_hosts(users: str, everybodys: str, tokens: dict[str, str]) -> tuple[str, ...]:
    """The files that can hold a key: /dev/null would mean that no key is ever checked again."""
    names = [expand(each, tokens) for each in f"{users} {everybodys}".split()]
    files = [os.path.expanduser(each) for each in names if each not in ("none", "/dev/null")]
    kept_by_users = set(users.split()) - {"none", "/dev/null"}
    default = [] if kept_by_users else [os.path.expanduser("~/.ssh/known_hosts")]
    return tuple(default + files)


def _resolve_without_ssh(name: str, config_file: str, user: str, port: int) -> Target:
    path = Path(config_file or "~/.ssh/config").expanduser()
    found: dict[str, Any] = {}
    if path.is_file():
        found = dict(paramiko.SSHConfig.from_path(str(path)).lookup(name))
    lines = [f"hostname {found.pop('hostname', name)}"]
    lines += [f"port {port}"] if port else []
    lines += [f"user {user}"] if user else []
    for key, value in found.items():
        lines += [f"{key} {each}" for each in (value if isinstance(value, list) else [value])]
    return parse_settings(name, "\n".join(lines))


class Hop(NamedTuple):
    """One jump host as ProxyJump names it."""

    name: str
    user: str = ""
    port: int = 0


def hops_of(jump: str) -> list[Hop]:
    """`[user@]host[:port]`, `[user@][v6]:port` or `ssh://…`, with commas between, in order."""
    return [_hop(each.strip()) for each in jump.split(",") if each.strip()]


def _hop(text: str) -> Hop:
    user, _, rest = text.removeprefix("ssh://").rpartition("@")
    found = re.fullmatch(r"\[(.+)\](?::(\d+))?", rest) or re.fullmatch(r"([^:]+)(?::(\d+))?", rest)
    return Hop(found[1], user, int(found[2] or 0)) if found else Hop(rest, user)


def fastest_first(ciphers: tuple[str, ...]) -> dict[str, str]:
    """Ssh's option that puts AES-GCM first: a third less work than the usual first choice.

    Nothing is added to what the user's ssh allows.
    """
    quick = sorted(each for each in ciphers if "gcm" in each)
    rest = [each for each in ciphers if "gcm" not in each]
    return {"Ciphers": ",".join([*quick, *rest])} if quick else {}
