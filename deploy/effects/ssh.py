"""SSH to a box: control over Fabric, bulk data over the system's ssh; one set of host keys for both."""

from __future__ import annotations

import contextlib
import logging
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

import paramiko
from fabric import Config as FabricConfig
from fabric import Connection

from deploy.effects.alive import DEAD_SECONDS, PING_SECONDS, LiveTransport
from deploy.effects.hostkeys import HostKeys, changed, fingerprint
from deploy.effects.link import Child, Done, OnLine, Stream, finish
from deploy.effects.login import Login
from deploy.effects.target import Target, hops_of, resolve, ssh_options
from deploy.errors import ConnectError, LinkLost

CONNECT_SECONDS = 15
GOES_ON = "the same command goes on where it was"
SESSION_ENDS = 0.3  # seconds that a box may take to count a session as ended
KILLED = 137  # what a shell makes of a command that a signal ended

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # what it logs, we raise


class SshLink:
    """One SSH connection by Fabric; `stream` opens the system's ssh beside it where it can.

    Where paramiko can't log in but `ssh NAME` can (a security key, Kerberos, a host
    certificate), the system's ssh carries the control connection too.
    """

    def __init__(
        self,
        name: str,
        host_keys: HostKeys,
        config_file: str = "",
        user: str = "",
        port: int = 0,
        host: str = "",
    ) -> None:
        self.name = name
        self._ssh_name = host or name
        self._options = ssh_options(config_file, user, port)
        self._config_file = config_file
        self._host_keys = host_keys
        self.target = resolve(self._ssh_name, config_file, user, port)
        self._logins: dict[Target, Login] = {}
        self._by_system_ssh = False
        self._opened: list[Any] = []  # jump hosts too, in the order of opening
        self._connection: Any = None
        self._connect()

    def _connect(self) -> None:
        """Log in with what needs no question, else by the system's ssh, else by asking."""
        try:
            self._connection = self._open_all()
        except paramiko.AuthenticationException as no:
            if self._system_ssh_logs_in():
                self._by_system_ssh = True
            elif sys.stdin.isatty():
                self._connect_asking()
            else:
                raise self._refused(no) from no

    def _connect_asking(self) -> None:
        for login in self._logins.values():
            login.may_ask = True
        try:
            self._connection = self._open_all()
        except paramiko.AuthenticationException as no:
            raise self._refused(no) from no

    def _refused(self, no: Exception) -> ConnectError:
        target, login = list(self._logins.items())[-1]  # the last one reached
        locked = "".join(f"; {path} needs its passphrase: ssh-add it" for path in login.locked())
        return ConnectError(
            f"{self.name}: {target.user}@{target.host} does not accept our keys ({no}{locked})",
            f"try `ssh {target.name}`; then ssh-copy-id, or name the key in ~/.ssh/config",
        )

    def _open_all(self) -> Any:
        """The connection to the box, through its jump hosts, each with its key checked."""
        self.close()
        sock: Any = None
        if self.target.proxy_command:
            sock = paramiko.ProxyCommand(shlex.join(["/bin/sh", "-c", self.target.proxy_command]))
        route = [*self._route(self.target), self.target]
        for hop, following in zip(route, route[1:], strict=False):
            gateway = self._open(hop, self._host_keys.for_hop(), sock)
            sock = self._through(gateway, hop, following)
        return self._open(self.target, self._host_keys, sock)

    def _route(self, target: Target, depth: int = 0) -> Iterator[Target]:
        """The jump hosts before a target; the first one's own ProxyJump counts too, as in ssh."""
        if depth > 8:
            raise ConnectError(f"{self.name}: ProxyJump goes in a circle", "mend ~/.ssh/config")
        for index, hop in enumerate(hops_of(target.jump)):
            settings = resolve(hop.name, self._config_file, hop.user, hop.port)
            if index == 0:
                yield from self._route(settings, depth + 1)
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
                f"try `ssh {self._ssh_name}`",
            ) from no

    def _open(self, target: Target, host_keys: HostKeys, sock: Any) -> Any:
        login = self._logins.setdefault(target, Login(target))
        connection = _prepared(target, host_keys, login, sock)
        try:
            connection.open()
        except paramiko.BadHostKeyException as no:
            raise changed(target, f"{no.key.get_name()} {fingerprint(no.key)}") from no
        except paramiko.AuthenticationException:
            raise
        except (OSError, EOFError, paramiko.SSHException) as no:
            raise ConnectError(
                f"{self.name}: no SSH at {target.host} port {target.port}: {_why(no)}",
                f"is the box on? try `ssh {self._ssh_name}`",
            ) from no
        self._opened.append(connection)
        connection.transport.watch()
        return connection

    def _system_ssh_logs_in(self) -> bool:
        if shutil.which("ssh") is None:
            return False
        child = self._system_ssh("exit 0")
        child.stdin.close()
        return child.wait() == 0

    def run(self, command: str, stdin: bytes = b"", on_line: OnLine | None = None) -> Done:
        """See Link. A dead connection is opened again first; LinkLost once the command was sent."""
        stream = self._system_ssh(command) if self._by_system_ssh else self._channel(command)
        try:
            done = finish(stream, stdin, on_line, self.name)
        finally:
            stream.close()
        if done.code == -1 and not isinstance(stream, Child):
            if not stream.alive():
                raise self._lost()
            return done._replace(code=KILLED)
        return done

    def stream(self, command: str) -> Stream:
        """The system's ssh where it gets in without asking, else a channel of our own."""
        asked = any(login.asked for login in self._logins.values())
        if shutil.which("ssh") is None or asked:
            return self._channel(command)
        return self._system_ssh(command)

    def _system_ssh(self, command: str) -> Child:
        return Child(["ssh", *self._options, *self.bulk_options(), "--", self._ssh_name, command])

    def terminal(self, command: str) -> list[str]:
        options = ["-o", "BatchMode=no", *self._options, *self.bulk_options(), "-t"]
        return ["ssh", *options, "--", self._ssh_name, *([command] if command else [])]

    @property
    def transport(self) -> Any:
        """paramiko's side of the connection, for channels that are not commands (tunnels)."""
        return self._connection.transport

    def bulk_options(self) -> list[str]:
        """Options for the system's ssh: never asks, the same host keys, notices a dead link."""
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": " ".join(f'"{path}"' for path in self.target.known_hosts),
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": str(PING_SECONDS),
            "ServerAliveCountMax": str(DEAD_SECONDS // PING_SECONDS),
            "Compression": "no",
            # A master of the user's would neither notice a dead link nor have its key checked
            # now; but where only the system's ssh can log in, it may be the reason why.
            **({"ControlMaster": "no"} if self._by_system_ssh else {"ControlPath": "none"}),
        }
        login = self._logins.get(self.target)
        if login and login.key_file:  # ssh would offer all of the agent's before it
            options |= {"IdentitiesOnly": "yes", "IdentityFile": f'"{login.key_file}"'}
        return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]

    def _channel(self, command: str) -> Channel:
        """A session with the command sent; LinkLost if nobody knows whether it arrived."""
        session = self._session()
        try:
            return Channel(session, command)
        except (OSError, EOFError, paramiko.SSHException) as no:
            raise self._lost() from no

    def _session(self) -> Any:
        """An open session, nothing sent yet: so it may be tried again on a new connection."""
        for wait in (SESSION_ENDS, 0):
            try:
                return self._connection.transport.open_session(timeout=CONNECT_SECONDS)
            except paramiko.ChannelException:  # MaxSessions: the others are in use, or just were
                time.sleep(wait)
            except (OSError, EOFError, paramiko.SSHException):
                break
        beside = self._opened if self._connection.transport.is_active() else []
        self._opened = [each for each in self._opened if each not in beside]
        self._connect()
        self._opened += beside
        try:
            return self._connection.transport.open_session(timeout=CONNECT_SECONDS)
        except (OSError, EOFError, paramiko.SSHException) as no:
            raise self._lost() from no

    def _lost(self) -> LinkLost:
        silent = any(getattr(each.transport, "went_silent", False) for each in self._opened)
        why = f"nothing heard for {DEAD_SECONDS} s" if silent else "the connection died"
        return LinkLost(f"{self.name}: {why}", GOES_ON)

    def close(self) -> None:
        for connection in reversed(self._opened):
            with contextlib.suppress(Exception):
                connection.close()
        self._opened = []


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


class Channel:
    """A command on a channel of our own connection, as a Stream."""

    def __init__(self, session: Any, command: str) -> None:
        self.channel = session
        self.channel.exec_command(command)
        self.stdin: IO[bytes] = _Writer(self.channel)  # type: ignore[assignment]
        self.stdout: IO[bytes] = self.channel.makefile("rb")
        self.stderr: IO[bytes] = self.channel.makefile_stderr("rb")

    def wait(self) -> int:
        return int(self.channel.recv_exit_status())

    def alive(self) -> bool:
        return bool(self.channel.get_transport().is_active())

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.channel.close()


class _Writer:
    """The channel's standard input; closing it tells the box that nothing more comes."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def write(self, data: bytes) -> int:
        self._channel.sendall(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._channel.shutdown_write()


def _why(fault: BaseException) -> str:
    if isinstance(fault, socket.timeout | TimeoutError):
        return f"no answer within {CONNECT_SECONDS} s"
    return str(fault) or type(fault).__name__
