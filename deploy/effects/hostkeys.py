"""Host keys: known ones pass, unknown ones are shown and asked for, changed ones never pass."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import paramiko

from deploy.effects.target import Target
from deploy.errors import HostKeyError

Ask = Callable[[str], bool]


class Known(NamedTuple):
    """What the known-hosts files say of one host: (type, base64) of keys to trust and to refuse."""

    trusted: list[tuple[str, str]]
    revoked: list[tuple[str, str]]


class HostKeys:
    """What to do with keys: `accept_new` takes unknown ones, `fingerprint` only that very one."""

    def __init__(
        self, ask: Ask | None = None, accept_new: bool = False, fingerprint: str = ""
    ) -> None:
        self._ask = ask
        self._accept_new = accept_new
        self._fingerprint = fingerprint

    @property
    def pinned(self) -> bool:
        """Whether the config names the only key to accept."""
        return bool(self._fingerprint)

    def for_hop(self) -> HostKeys:
        """The same for a jump host: the config's fingerprint is the box's, not the jump host's."""
        return HostKeys(self._ask, self._accept_new)

    def guard(self, client: Any, target: Target) -> None:
        """Give a client that is not open yet the keys we know, and our policy for all others."""
        known = known_keys(target)
        lookup = target.host if target.port == 22 else f"[{target.host}]:{target.port}"
        for kind, text in known.trusted:
            if (kind, text) not in known.revoked:
                with contextlib.suppress(ValueError, binascii.Error, paramiko.SSHException):
                    key = paramiko.PKey.from_type_string(kind, base64.b64decode(text))
                    client.get_host_keys().add(lookup, kind, key)
        client.set_missing_host_key_policy(_Policy(self, target, known))

    def decide(self, target: Target, key: Any, known: Known) -> None:
        """Return if the unknown key may be added; HostKeyError if not."""
        shown = f"{key.get_name()} {fingerprint(key)}"
        if (key.get_name(), key.get_base64()) in known.revoked:
            raise HostKeyError(
                f"{target.name}: the host key {shown} is marked @revoked in your known hosts",
                "someone holds a stolen key, or the box has an old one: give it a new key",
            )
        if known.trusted:
            raise changed(target, shown)
        if not self._fingerprint and not self._accept_new and not self._asked(target, shown):
            raise HostKeyError(
                f"{target.name}: unknown host key {shown}",
                f"compare it with the provider's console, then `ssh {target.name}` once, or "
                "--accept-new, or boxes.NAME.fingerprint",
            )

    def check_fingerprint(self, target: Target, key: Any) -> None:
        """HostKeyError where the config names one key and this is another, known or not."""
        if self._fingerprint not in ("", fingerprint(key)):
            raise HostKeyError(
                f"{target.name}: the host key is {key.get_name()} {fingerprint(key)}, "
                f"the config says {self._fingerprint}",
                "compare it with what the provider's console shows before you change the config",
            )

    def _asked(self, target: Target, shown: str) -> bool:
        if self._ask is None or not sys.stdin.isatty():
            return False
        return self._ask(f"{target.name} ({target.host} port {target.port}) shows host key {shown}")


class _Policy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    def __init__(self, keys: HostKeys, target: Target, known: Known) -> None:
        self._keys = keys
        self._target = target
        self._known = known

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        self._keys.check_fingerprint(self._target, key)
        if self._known_without_port(key):
            return
        self._keys.decide(self._target, key, self._known)
        remember(self._target, key)

    def _known_without_port(self, key: Any) -> bool:
        """ssh takes a host's key of port 22 on another port too, if it is the very same."""
        if self._target.port == 22 or self._target.key_alias or self._known.trusted:
            return False
        plain = known_keys(self._target._replace(port=22))
        pair = (key.get_name(), key.get_base64())
        return pair in plain.trusted and pair not in plain.revoked


def known_keys(target: Target) -> Known:
    """What all known-hosts files say of the target; read by ssh-keygen, which knows hashed names,
    patterns and markers, or by paramiko where there is none."""
    lines = [line for path in target.known_hosts for line in _lines_about(target.key_name, path)]
    known = Known([], [])
    for line in lines:
        marker = line.pop(0) if line[0].startswith("@") else ""
        if len(line) >= 3 and marker != "@cert-authority":
            (known.revoked if marker == "@revoked" else known.trusted).append((line[1], line[2]))
    return known


def _lines_about(name: str, path: str) -> list[list[str]]:
    if not Path(path).is_file():
        return []
    if shutil.which("ssh-keygen") is None:
        found = paramiko.HostKeys(path).lookup(name) or {}
        return [[name, kind, key.get_base64()] for kind, key in found.items()]
    command = ["ssh-keygen", "-F", name, "-f", path]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return [line.split() for line in done.stdout.splitlines() if line and line[0] != "#"]


def remember(target: Target, key: Any) -> None:
    """Append to the first known-hosts file, as ssh does; both ways of ours read it from there."""
    path = Path(target.known_hosts[0])
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else ""
    glue = "" if not text or text.endswith("\n") else "\n"
    name = paramiko.HostKeys.hash_host(target.key_name) if target.hash_names else target.key_name
    with path.open("a") as file:
        file.write(f"{glue}{name} {key.get_name()} {key.get_base64()}\n")


def fingerprint(key: Any) -> str:
    """`SHA256:…`, as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def changed(target: Target, shown: str) -> HostKeyError:
    return HostKeyError(
        f"{target.name}: THE HOST KEY HAS CHANGED, now {shown}",
        "a box that was re-created has a new key: compare it with the provider's console, then "
        f"`{remedy(target)}`; if you did not re-create it, someone may be listening in",
    )


def _holding(target: Target) -> list[str]:
    """The known-hosts files that say something of the target."""
    return [path for path in target.known_hosts if _lines_about(target.key_name, path)]


def holding_file(target: Target) -> str:
    """The file that holds the key; for a port of its own also the one that has it for port 22."""
    found = _holding(target) or _holding(target._replace(port=22))
    return found[0] if found else target.known_hosts[0]


def remedy(target: Target) -> str:
    """The command that forgets the old key, in the file that has it."""
    usual = str(Path("~/.ssh/known_hosts").expanduser())
    holding = _holding(target)
    files = [f" -f '{path}'" if path != usual else "" for path in holding or [usual]]
    return "; ".join(f"ssh-keygen -R '{target.key_name}'{file}" for file in files)
