"""SSH to a box: control over Fabric, bulk data over the system's ssh; one set of host keys for both."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, NamedTuple

import paramiko
from fabric import Config as FabricConfig
from fabric import Connection

from deploy.effects.hostkeys import HostKeys, changed, fingerprint
from deploy.effects.link import Child, Done, OnLine, Stream, finish
from deploy.errors import ConnectError, LinkLost

CONNECT_SECONDS = 15
ALIVE_SECONDS = 10  # between two keepalives; three unanswered ones end the system's ssh


class Target(NamedTuple):
    """Where `ssh NAME` would go, as `ssh -G NAME` says it."""

    name: str
    host: str
    port: int
    user: str
    identities: tuple[str, ...]
    identities_only: bool
    agent: str  # a socket's path, "SSH_AUTH_SOCK" or "none"
    jump: str  # ProxyJump's value, "" without one
    proxy_command: str
    known_hosts: tuple[str, ...]
    key_alias: str


def resolve(name: str, config_file: str = "", user: str = "", port: int = 0) -> Target:
    """The settings of the system's ssh for a name; paramiko's own reading where there is no ssh."""
    if shutil.which("ssh") is None:
        return _resolve_without_ssh(name, config_file, user, port)
    command = ["ssh", "-G", *_ssh_options(config_file, user, port), "--", name]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ConnectError(
            f"{name}: ssh -G failed: {_last_line(done.stderr)}", "mend ~/.ssh/config"
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

    known = one("userknownhostsfile").split() + one("globalknownhostsfile").split()
    return Target(
        name=name,
        host=one("hostname", name),
        port=int(one("port", "22")),
        user=one("user", getpass.getuser()),
        identities=tuple(os.path.expanduser(each) for each in found.get("identityfile", [])),
        identities_only=one("identitiesonly") == "yes",
        agent=one("identityagent", "SSH_AUTH_SOCK"),
        jump=unless_none("proxyjump"),
        proxy_command=unless_none("proxycommand"),
        known_hosts=tuple(os.path.expanduser(each) for each in known if each != "none"),
        key_alias=one("hostkeyalias"),
    )


def _resolve_without_ssh(name: str, config_file: str, user: str, port: int) -> Target:
    path = Path(config_file or "~/.ssh/config").expanduser()
    found: dict[str, Any] = {}
    if path.is_file():
        found = dict(paramiko.SSHConfig.from_path(str(path)).lookup(name))
    lines = [f"hostname {found.get('hostname', name)}"]
    lines.append(f"port {port or found.get('port', 22)}")
    lines.append(f"user {user or found.get('user', getpass.getuser())}")
    lines += [f"identityfile {each}" for each in found.get("identityfile", [])]
    lines += [f"proxyjump {found['proxyjump']}"] if "proxyjump" in found else []
    lines.append("userknownhostsfile ~/.ssh/known_hosts")
    return parse_settings(name, "\n".join(lines))


def _ssh_options(config_file: str, user: str, port: int) -> list[str]:
    options = ["-F", config_file] if config_file else []
    options += ["-l", user] if user else []
    return options + (["-p", str(port)] if port else [])


class SshLink:
    """One SSH connection by Fabric; `stream` opens the system's ssh beside it where it can."""

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
        self._options = _ssh_options(config_file, user, port)
        self._config_file = config_file
        self._host_keys = host_keys
        self.target = resolve(self._ssh_name, config_file, user, port)
        self._password = ""
        self._connection = self._open()

    def _open(self) -> Any:
        connection = self._prepared(self.target)
        try:
            self._authenticate(connection)
        except paramiko.BadHostKeyException as no:
            raise changed(self.target, f"{no.key.get_name()} {fingerprint(no.key)}") from no
        except paramiko.AuthenticationException as no:
            raise ConnectError(
                f"{self.name}: {self.target.user}@{self.target.host} does not accept any of our keys"
                f" ({no})",
                f"try `ssh {self._ssh_name}`; then ssh-copy-id, or name the key in ~/.ssh/config",
            ) from no
        except (OSError, EOFError, paramiko.SSHException) as no:
            raise ConnectError(
                f"{self.name}: no SSH at {self.target.host} port {self.target.port}: {_why(no)}",
                f"is the box on? try `ssh {self._ssh_name}`",
            ) from no
        connection.transport.set_keepalive(ALIVE_SECONDS)
        return connection

    def _prepared(self, target: Target) -> Any:
        """A Fabric connection that will refuse what our host keys don't know, before it is opened."""
        connection = Connection(
            target.host,
            user=target.user,
            port=target.port,
            gateway=self._gateway(target),
            connect_timeout=CONNECT_SECONDS,
            config=FabricConfig(overrides={"load_ssh_configs": False}),
            connect_kwargs={
                "key_filename": [each for each in target.identities if Path(each).is_file()],
                "allow_agent": target.agent != "none" and not target.identities_only,
                "look_for_keys": False,
                "banner_timeout": CONNECT_SECONDS,
                "auth_timeout": CONNECT_SECONDS * 2,
            },
        )
        self._host_keys.guard(connection.client, target)
        return connection

    def _gateway(self, target: Target) -> Any:
        if target.proxy_command:
            return target.proxy_command
        gateway = None
        for hop in filter(None, target.jump.split(",")):
            settings = resolve(_hop_name(hop), self._config_file, *_hop_login(hop))
            connection = self._prepared(settings._replace(jump="", proxy_command=""))
            connection.gateway = gateway
            gateway = connection
        return gateway

    def _authenticate(self, connection: Any) -> None:
        try:
            connection.open()
        except paramiko.PasswordRequiredException:
            connection.connect_kwargs["passphrase"] = _ask_secret(
                f"Passphrase for {self.name}'s key: "
            )
            connection.open()
        except paramiko.AuthenticationException:
            if not sys.stdin.isatty():
                raise
            self._password = _ask_secret(f"Password of {self.target.user}@{self.target.host}: ")
            connection.connect_kwargs["password"] = self._password
            connection.open()

    def run(self, command: str, stdin: bytes = b"", on_line: OnLine | None = None) -> Done:
        stream = self._channel(command)
        try:
            return finish(stream, stdin, on_line, self.name)
        finally:
            stream.close()

    def stream(self, command: str) -> Stream:
        """The system's ssh where there is one and no password is needed, else our own channel."""
        if shutil.which("ssh") is None or self._password or self.target.proxy_command:
            return self._channel(command)
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
            "UserKnownHostsFile": " ".join(self.target.known_hosts),
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": str(ALIVE_SECONDS),
            "ServerAliveCountMax": "3",
            "Compression": "no",
        }
        return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]

    def _channel(self, command: str) -> Stream:
        try:
            return Channel(self._connection.transport, command)
        except (OSError, EOFError, paramiko.SSHException) as no:
            raise LinkLost(f"{self.name}: the connection died: {_why(no)}", "try again") from no

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.close()


class Channel:
    """A command on a channel of our own connection, as a Stream."""

    def __init__(self, transport: Any, command: str) -> None:
        self.channel = transport.open_session(timeout=CONNECT_SECONDS)
        self.channel.exec_command(command)
        self.stdin: IO[bytes] = _Writer(self.channel)  # type: ignore[assignment]
        self.stdout: IO[bytes] = self.channel.makefile("rb")
        self.stderr: IO[bytes] = self.channel.makefile_stderr("rb")

    def wait(self) -> int:
        return int(self.channel.recv_exit_status())

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


def _hop_name(hop: str) -> str:
    return (
        hop.rsplit("@", 1)[-1].rsplit(":", 1)[0] if hop.count(":") == 1 else hop.rsplit("@", 1)[-1]
    )


def _hop_login(hop: str) -> tuple[str, int]:
    user = hop.rsplit("@", 1)[0] if "@" in hop else ""
    return user, int(hop.rsplit(":", 1)[1]) if hop.count(":") == 1 else 0


def _ask_secret(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise ConnectError(
            prompt.rstrip(": ") + " is needed", "run it in a terminal, or use an agent"
        )
    return getpass.getpass(prompt)


def _why(fault: BaseException) -> str:
    if isinstance(fault, socket.timeout | TimeoutError):
        return f"no answer within {CONNECT_SECONDS} s"
    return str(fault) or type(fault).__name__


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
