"""Host keys: known ones pass, unknown ones are shown and asked for, changed ones never pass."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko

from deploy.errors import HostKeyError

if TYPE_CHECKING:
    from deploy.effects.ssh import Target

Ask = Callable[[str], bool]


class HostKeys:
    """What to do with keys: `accept_new` takes unknown ones, `fingerprint` only that very one."""

    def __init__(
        self, ask: Ask | None = None, accept_new: bool = False, fingerprint: str = ""
    ) -> None:
        self._ask = ask
        self._accept_new = accept_new
        self._fingerprint = fingerprint

    def guard(self, client: Any, target: Target) -> None:
        """Load the known-hosts files into a client that is not open yet and set our policy."""
        for path in target.known_hosts:
            with contextlib.suppress(OSError):
                client.load_system_host_keys(path)
        client.set_missing_host_key_policy(_Policy(self, target))

    def decide(self, target: Target, key: Any, known: list[str]) -> None:
        """Return if the unknown key may be added, else raise. `known`: key types we know already."""
        shown = f"{key.get_name()} {fingerprint(key)}"
        if known:
            raise changed(target, shown)
        if self._fingerprint:
            if self._fingerprint != fingerprint(key):
                raise HostKeyError(
                    f"{target.name}: the host key is {shown}, the config says {self._fingerprint}",
                    "compare it with what the provider's console shows before you change the config",
                )
        elif not self._accept_new and not self._asked(target, shown):
            raise HostKeyError(
                f"{target.name}: unknown host key {shown}",
                f"compare it with the provider's console, then `ssh {target.name}` once, or "
                "--accept-new, or boxes.NAME.fingerprint",
            )

    def _asked(self, target: Target, shown: str) -> bool:
        if self._ask is None or not sys.stdin.isatty():
            return False
        return self._ask(f"{target.name} ({target.host} port {target.port}) shows host key {shown}")


class _Policy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    def __init__(self, keys: HostKeys, target: Target) -> None:
        self._keys = keys
        self._target = target

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        self._keys.decide(self._target, key, known_types(client, hostname))
        remember(self._target, hostname, key)


def known_types(client: Any, hostname: str) -> list[str]:
    found = client._system_host_keys.lookup(hostname) or {}
    return list(found.keys())


def remember(target: Target, hostname: str, key: Any) -> None:
    """Append to the first known-hosts file, as ssh does; both ways of ours read it from there."""
    path = Path(target.known_hosts[0] if target.known_hosts else "~/.ssh/known_hosts").expanduser()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else ""
    glue = "" if not text or text.endswith("\n") else "\n"
    with path.open("a") as file:
        file.write(f"{glue}{hostname} {key.get_name()} {key.get_base64()}\n")


def fingerprint(key: Any) -> str:
    """`SHA256:…`, as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def changed(target: Target, shown: str) -> HostKeyError:
    where = target.host if target.port == 22 else f"[{target.host}]:{target.port}"
    return HostKeyError(
        f"{target.name}: THE HOST KEY HAS CHANGED, now {shown}",
        f"a box that was re-created has a new key: compare it with the provider's console, then "
        f"`ssh-keygen -R '{where}'`; if you did not re-create it, someone may be listening in",
    )
