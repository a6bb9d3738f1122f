"""How we log in: the same keys in the same order as ssh, asked for a secret only where someone can answer."""

from __future__ import annotations

import base64
import contextlib
import getpass
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
from paramiko.agent import AgentSSH

from deploy.effects.target import Target
from deploy.errors import ConnectError


class Login:
    """Logs one target in; secrets that were typed stay in memory, for a reconnect."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.may_ask = False
        self.asked = False  # the system's ssh could not do it without asking again
        self.key_file = ""  # the one that was accepted, if it was not the agent's
        self.accepted = ""  # the same for people
        self._unlocked: dict[str, Any] = {}
        self._password = ""

    def authenticate(self, transport: Any) -> None:
        """Called by paramiko once the host key has passed; AuthenticationException if all fail."""
        offered = 0
        for path, key in self._keys():
            offered += 1
            with contextlib.suppress(paramiko.AuthenticationException):
                transport.auth_publickey(self.target.user, key)
            if transport.is_authenticated():
                self.key_file, self.accepted = path, f"key {path or 'of the agent'}"
                return
            if not transport.is_active():
                raise paramiko.AuthenticationException(
                    f"it hung up after {offered} keys; IdentitiesOnly yes offers fewer"
                )
        if self.may_ask or self._password:
            self._by_password(transport)
        if not transport.is_authenticated():
            raise paramiko.AuthenticationException(f"{offered} keys offered")
        self.accepted = "password"

    def locked(self) -> list[str]:
        """The target's key files that need a passphrase."""
        return [path for path in self.target.identities if is_locked(path)]

    def _keys(self) -> Iterator[tuple[str, Any]]:
        """Agent keys that the config names, key files, other agent keys, then locked key files;
        each with its file, "" for the agent's."""
        agent = agent_keys(self.target.agent)
        named = {public_blob(path) for path in self.target.identities}
        yield from (("", key) for key in agent if key.asbytes() in named)
        in_agent = {key.asbytes() for key in agent}
        for path in self.target.identities:
            if path in self._unlocked:
                yield path, self._unlocked[path]
            elif public_blob(path) not in in_agent:
                yield from ((path, key) for key in load(path))
        if not self.target.identities_only:
            yield from (("", key) for key in agent if key.asbytes() not in named)
        if self.may_ask:
            yield from self._ask_passphrases(in_agent)

    def _ask_passphrases(self, in_agent: set[bytes]) -> Iterator[tuple[str, Any]]:
        for path in self.locked():
            if path in self._unlocked or public_blob(path) in in_agent:
                continue
            self.asked = True
            secret = ask_secret(f"Passphrase for {path}: ")
            for key in load(path, secret):
                self._unlocked[path] = key
                yield path, key

    def _by_password(self, transport: Any) -> None:
        self.asked = True
        where = f"{self.target.user}@{self.target.host}"
        self._password = self._password or ask_secret(f"Password of {where}: ")
        try:
            transport.auth_password(self.target.user, self._password)
        except paramiko.AuthenticationException:
            self._password = ""
            raise


def agent_keys(setting: str) -> list[Any]:
    """The keys of the agent at `setting` (IdentityAgent's value); none where it is not there."""
    path = os.environ.get("SSH_AUTH_SOCK", "") if setting == "SSH_AUTH_SOCK" else setting
    if path.startswith("$"):
        path = os.environ.get(path.strip("${}"), "")
    if setting == "none" or not path:
        return []
    agent = AgentSSH()
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        connection.connect(path)
        agent._connect(connection)
        return list(agent.get_keys())
    except (OSError, AttributeError, paramiko.SSHException):
        return []  # AttributeError: no Unix sockets on this system


def public_blob(path: str) -> bytes:
    """The public half of a key file, from NAME.pub or from NAME itself; b"" where there is none."""
    for name in (f"{path}.pub", path):
        with contextlib.suppress(OSError, ValueError):
            kind, text = Path(name).read_text().split()[:2]
            if kind.startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(text)
    return b""


def load(path: str, secret: str | None = None) -> Iterator[Any]:
    """The private key in a file, with the certificate beside it if there is one; or nothing."""
    with contextlib.suppress(paramiko.PasswordRequiredException):
        key = read_key(path, secret)
        if key is not None:
            with contextlib.suppress(OSError, ValueError, paramiko.SSHException):
                key.load_certificate(f"{path}-cert.pub")
            yield key


def is_locked(path: str) -> bool:
    """Whether a private key file is there and asks for a passphrase."""
    try:
        read_key(path, None)
    except paramiko.PasswordRequiredException:
        return True
    return False


def read_key(path: str, secret: str | None) -> Any:
    """The key in a file; None if it is not there, not a private key, or the secret is wrong."""
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key_file(path, secret)
        except paramiko.PasswordRequiredException:
            raise
        except (OSError, ValueError, TypeError, paramiko.SSHException):
            continue  # of another kind
    return None


def ask_secret(prompt: str) -> str:
    if not sys.stdin.isatty():
        what = prompt.rstrip(": ")
        raise ConnectError(f"{what} is needed", "run it in a terminal, or put the key in an agent")
    return getpass.getpass(prompt)
