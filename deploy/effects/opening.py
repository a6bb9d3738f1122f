"""Opens Fabric connections to a box through its jump hosts, each with its host key checked first."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
from collections.abc import Iterator
from typing import Any

import paramiko
from fabric import Config as FabricConfig
from fabric import Connection
from paramiko.ssh_exception import IncompatiblePeer

from deploy.effects.alive import LiveTransport
from deploy.effects.hostkeys import HostKeys, changed, fingerprint
from deploy.effects.login import Login
from deploy.effects.target import Target, hops_of, resolve
from deploy.errors import ConnectError

CONNECT_SECONDS = 15

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # what it logs, we raise


class Route:
    """The way to one box; `opened` are its live connections, jump hosts first."""

    def __init__(self, name: str, target: Target, host_keys: HostKeys, config_file: str) -> None:
        self.name = name
        self.target = target
        self.logins: dict[Target, Login] = {}
        self.opened: list[Any] = []
        self._host_keys = host_keys
        self._config_file = config_file

    def open(self) -> Any:
        """The connection to the box, through its jump hosts, each with its key checked."""
        self.close()
        route = [*self._hops(self.target), self.target]
        sock: Any = None
        if command := route[0].proxy_command:
            sock = paramiko.ProxyCommand(shlex.join(["/bin/sh", "-c", command]))
        for hop, following in zip(route, route[1:], strict=False):
            gateway = self._open_one(hop, self._host_keys.for_hop(), sock)
            sock = self._through(gateway, hop, following)
        return self._open_one(self.target, self._host_keys, sock)

    def _hops(self, target: Target, depth: int = 0) -> Iterator[Target]:
        """The jump hosts before a target; the first one's own ProxyJump counts too, as in ssh."""
        if depth > 8:
            raise ConnectError(f"{self.name}: ProxyJump goes in a circle", "mend ~/.ssh/config")
        for index, hop in enumerate(hops_of(target.jump)):
            settings = resolve(hop.name, self._config_file, hop.user, hop.port)
            if index == 0:
                yield from self._hops(settings, depth + 1)
            yield settings

    def _through(self, gateway: Any, hop: Target, following: Target) -> Any:
        where = (following.host, following.port)
        try:
            return gateway.transport.open_channel(
                "direct-tcpip", where, ("", 0), timeout=CONNECT_SECONDS
            )
        except (OSError, EOFError, paramiko.SSHException) as no:
            raise ConnectError(
                f"{self.name}: {hop.name} does not reach {where[0]} port {where[1]}: {_why(no)}",
                f"try `ssh {self.target.name}`",
            ) from no

    def _open_one(self, target: Target, host_keys: HostKeys, sock: Any) -> Any:
        login = self.logins.setdefault(target, Login(target))
        connection = _prepared(target, host_keys, login, sock)
        try:
            connection.open()
        except paramiko.BadHostKeyException as no:
            raise changed(target, f"{no.key.get_name()} {fingerprint(no.key)}") from no
        except (paramiko.AuthenticationException, IncompatiblePeer):
            raise  # the system's ssh may know better
        except (OSError, EOFError, paramiko.SSHException) as no:
            raise ConnectError(
                f"{self.name}: no SSH at {target.host} port {target.port}: {_why(no)}",
                f"is the box on? try `ssh {self.target.name}`",
            ) from no
        self.opened.append(connection)
        connection.transport.watch()
        return connection

    def close(self) -> None:
        for connection in reversed(self.opened):
            with contextlib.suppress(Exception):
                connection.close()
        self.opened = []


def _prepared(target: Target, host_keys: HostKeys, login: Login, sock: Any) -> Any:
    """A Fabric connection that will refuse what our host keys don't know, before it is opened."""
    settings: dict[str, Any] = {
        "transport_factory": LiveTransport,
        "auth_strategy": _Strategy(target, host_keys, login),
        "banner_timeout": CONNECT_SECONDS,
        "auth_timeout": CONNECT_SECONDS * 2,
    }
    connection = Connection(
        target.host,
        user=target.user,
        port=target.port,
        connect_timeout=CONNECT_SECONDS,
        config=FabricConfig(overrides={"load_ssh_configs": False}),
        connect_kwargs=settings | ({"sock": sock} if sock is not None else {}),
    )
    host_keys.guard(connection.client, target)
    return connection


class _Strategy:
    """What paramiko calls when the host key has passed: the config's fingerprint, then the login."""

    def __init__(self, target: Target, host_keys: HostKeys, login: Login) -> None:
        self._target = target
        self._host_keys = host_keys
        self._login = login

    def authenticate(self, transport: Any) -> None:
        self._host_keys.check_fingerprint(self._target, transport.get_remote_server_key())
        self._login.authenticate(transport)


def _why(fault: BaseException) -> str:
    if isinstance(fault, socket.timeout | TimeoutError):
        return f"no answer within {CONNECT_SECONDS} s"
    return str(fault) or type(fault).__name__
