"""SSH to a box: control over Fabric, bulk data over the system's ssh; one set of host keys for both."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import threading
import time
from concurrent.futures import Future
from typing import IO, Any

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST
from paramiko.ssh_exception import IncompatiblePeer

from deploy.effects.ahead import Ahead
from deploy.effects.alive import DEAD_SECONDS, PING_SECONDS
from deploy.effects.hostkeys import HostKeys, holding_file
from deploy.effects.link import Child, Done, OnLine, Stream, finish
from deploy.effects.login import Login
from deploy.effects.opening import CONNECT_SECONDS, Route
from deploy.effects.target import Target, fastest_first, resolve, ssh_options
from deploy.errors import ConnectError, LinkLost

GOES_ON = "the same command goes on where it was"
SESSION_ENDS = 0.3  # seconds that a box may take to count a session as ended
KILLED = 137  # what a shell makes of a command that a signal ended


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
        ahead: str = "",
    ) -> None:
        """`ahead`: a command that `stream` will be asked for; the system's ssh is on its way with it
        while we log in. It never asks, and takes no host key but those that are known already."""
        self.name = name
        self._ssh_name = host or name
        self._config_file = config_file
        self._options = ssh_options(config_file, user, port)
        self.target = resolve(self._ssh_name, config_file, user, port)
        self._host_keys = host_keys
        self._route = Route(name, self.target, host_keys, config_file)
        self._by_system_ssh = False
        self._connection: Any = None
        self._spare: Future[Any] | None = None
        self._ahead = self._begin_ahead(ahead)
        try:
            self._connect()
        except BaseException:
            self._drop_ahead()
            raise
        self._open_spare()

    def _begin_ahead(self, command: str) -> Ahead | None:
        """Not through jump hosts: which keys they take is known only once we are through."""
        direct = not self.target.jump and not self.target.proxy_command
        if not command or not direct or shutil.which("ssh") is None:
            return None
        return Ahead(command, self._system_ssh(command))

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead:
            ahead.close()

    def _connect(self) -> None:
        """Log in with what needs no question, else by the system's ssh, else by asking."""
        try:
            self._connection = self._route.open()
        except (paramiko.AuthenticationException, IncompatiblePeer) as no:
            if self._system_ssh_logs_in(no):
                self._by_system_ssh = True
            elif sys.stdin.isatty() and not isinstance(no, IncompatiblePeer):
                self._connect_asking()
            else:
                raise self._refused(no) from no

    def _connect_asking(self) -> None:
        for login in self._route.logins.values():
            login.may_ask = True
        try:
            self._connection = self._route.open()
        except paramiko.AuthenticationException as no:
            raise self._refused(no) from no

    def _refused(self, no: Exception) -> ConnectError:
        target, login = list(self._route.logins.items())[-1]  # the last one reached
        if isinstance(no, IncompatiblePeer):
            return ConnectError(
                f"{self.name}: no common way to encrypt with {target.host}: {no}",
                f"where `ssh {target.name}` works without a question, so does the kit",
            )
        locked = "".join(f"; {path} needs its passphrase: ssh-add it" for path in login.locked())
        return ConnectError(
            f"{self.name}: {target.user}@{target.host} does not accept our keys ({no}{locked})",
            f"try `ssh {target.name}`; then ssh-copy-id, or name the key in ~/.ssh/config",
        )

    def _system_ssh_logs_in(self, why: Exception) -> bool:
        """Only with a key that we checked ourselves, or that its known hosts vouch for."""
        unchecked = isinstance(why, IncompatiblePeer) and self._host_keys.pinned
        if shutil.which("ssh") is None or unchecked:
            return False
        child = self._system_ssh("exit 0")
        try:
            return finish(child, b"", None, self.name).code == 0
        except LinkLost:
            return False
        finally:
            child.close()

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
        if not self.streams_apart():
            return self._channel(command)
        return self._taken_ahead(command) or self._system_ssh(command)

    def _taken_ahead(self, command: str) -> Child | None:
        ahead = self._ahead
        if ahead is None or ahead.command != command:
            return None
        self._ahead = None
        return ahead.take(CONNECT_SECONDS)

    def streams_apart(self) -> bool:
        """See Link: by a connection of the system's ssh."""
        asked = any(login.asked for login in self._route.logins.values())
        return shutil.which("ssh") is not None and not asked

    def _system_ssh(self, command: str) -> Child:
        return Child(["ssh", *self._options, *self.bulk_options(), "--", self._ssh_name, command])

    def terminal(self, command: str) -> list[str]:
        options = ["-o", "BatchMode=no", *self._options, *self.bulk_options()]
        options += ["-t"] if sys.stdin.isatty() else []
        return ["ssh", *options, "--", self._ssh_name, *([command] if command else [])]

    @property
    def transport(self) -> Any:
        """paramiko's side of the connection, for channels that are not commands (tunnels); None
        where the system's ssh carries it all."""
        return None if self._by_system_ssh else self._connection.transport

    def pipe(self, port: int) -> Child:
        """A connection to the box's own 127.0.0.1:`port` by the system's ssh."""
        options = [*self._options, *self.bulk_options(), "-W", f"127.0.0.1:{port}"]
        return Child(["ssh", *options, "--", self._ssh_name])

    def bulk_options(self) -> list[str]:
        """Options for the system's ssh: never asks, the same host keys, notices a dead link."""
        hops = [] if self._by_system_ssh else [each for each in self._logins if each != self.target]
        options = self._options_to(self.target)
        if hops:
            options["ProxyCommand"] = self._through(hops)
        return _words(options)

    def _through(self, hops: list[Target]) -> str:
        """A ProxyCommand through the jump hosts, each offered the key that it has taken: ssh's own
        ProxyJump would offer all of the agent's before it."""
        command = ""
        for hop, following in zip(hops, [*hops[1:], self.target], strict=True):
            options = self._options_to(hop)
            if command:
                options["ProxyCommand"] = command
            words = ["ssh", *ssh_options(self._config_file, hop.user, hop.port), *_words(options)]
            where = f"[{following.host}]:{following.port}"
            command = shlex.join([*words, "-W", where, "--", hop.name]).replace("%", "%%")
        return command

    def _options_to(self, target: Target) -> dict[str, str]:
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": " ".join(f'"{path}"' for path in target.known_hosts),
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": str(PING_SECONDS),
            "ServerAliveCountMax": str(DEAD_SECONDS // PING_SECONDS),
            "Compression": "no",
            **fastest_first(target.ciphers),
            # A master of the user's would neither notice a dead link nor have its key checked
            # now; but where only the system's ssh can log in, it may be the reason why.
            **({"ControlMaster": "no"} if self._by_system_ssh else {"ControlPath": "none"}),
        }
        login = self._logins.get(target)
        if login and login.key_file:  # ssh would offer all of the agent's before it
            options |= {"IdentitiesOnly": "yes", "IdentityFile": f'"{login.key_file}"'}
        return options

    @property
    def _logins(self) -> dict[Target, Login]:
        return self._route.logins

    def _channel(self, command: str) -> Channel:
        """A session with the command sent; LinkLost if nobody knows whether it arrived."""
        session = self._take_spare() or self._session()
        self._open_spare()
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
        beside = self._route.opened if self._connection.transport.is_active() else []
        self._route.opened = [each for each in self._route.opened if each not in beside]
        self._connect()
        self._route.opened += beside
        try:
            return self._connection.transport.open_session(timeout=CONNECT_SECONDS)
        except (OSError, EOFError, paramiko.SSHException) as no:
            raise self._lost() from no

    def _open_spare(self) -> None:
        """Have the session for the next request opened meanwhile: a round trip less for it."""
        if self._by_system_ssh:
            return
        transport = self._connection.transport
        spare: Future[Any] = Future()

        def opening() -> None:
            try:
                spare.set_result(transport.open_session(timeout=CONNECT_SECONDS))
            except (OSError, EOFError, paramiko.SSHException):
                spare.set_result(None)  # MaxSessions, or a dead link: the next request finds out

        self._spare = spare
        threading.Thread(target=opening, daemon=True).start()

    def _take_spare(self) -> Any:
        """The session that was opened ahead, if it is of the connection that we have and alive."""
        spare, self._spare = self._spare, None
        session = spare.result() if spare else None
        if session is None or session.get_transport() is not self._connection.transport:
            return None
        return session if session.active and not session.closed else None

    def describe(self) -> dict[str, str]:
        """For people: where it goes, what carries bulk data, which file vouches for the key."""
        target = self.target
        hops = [login.name for login in self._route.logins if login != target]
        by = (
            f" through {', '.join(hops)}"
            if hops
            else " by ProxyCommand" * bool(target.proxy_command)
        )
        own = "our own channel (no system ssh)" if shutil.which("ssh") is None else ""
        asked = any(login.asked for login in self._route.logins.values())
        return {
            "route": f"{target.user}@{target.host}:{target.port}{by}, {self._key()}",
            "bulk": own
            or ("our own channel (it asked for a secret)" if asked else "the system's ssh"),
            "host_key": f"known in {holding_file(target)}",
        }

    def _key(self) -> str:
        """By what we were let in."""
        if self._by_system_ssh:
            return "control by the system's ssh too"
        return self._route.logins[self.target].accepted

    def _lost(self) -> LinkLost:
        silent = any(getattr(each.transport, "went_silent", False) for each in self._route.opened)
        why = f"nothing heard for {DEAD_SECONDS} s" if silent else "the connection died"
        return LinkLost(f"{self.name}: {why}", GOES_ON)

    def close(self) -> None:
        self._drop_ahead()
        self._route.close()


class Channel:
    """A command on a channel of our own connection, as a Stream."""

    def __init__(self, session: Any, command: str) -> None:
        self.channel = session
        _execute(session, command)
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


def _execute(session: Any, command: str) -> None:
    """As `exec_command`, but without waiting a round trip for "yes": where the box refuses it, the
    channel is closed, and that is seen anyway."""
    request = paramiko.Message()
    request.add_byte(cMSG_CHANNEL_REQUEST)
    request.add_int(session.remote_chanid)
    request.add_string("exec")
    request.add_boolean(False)
    request.add_string(command)
    session.get_transport()._send_user_message(request)


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


def _words(options: dict[str, str]) -> list[str]:
    return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
