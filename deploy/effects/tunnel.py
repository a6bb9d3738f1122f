"""A port of this machine that leads to a port of the box, 127.0.0.1 at both ends, inside our SSH."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import paramiko

from deploy.effects.link import Child, Link, LocalLink
from deploy.errors import BoxUnfit, LinkLost, UsageError

CHUNK = 64 * 1024
PROBE_EVERY = 10.0  # seconds between two questions to the box's sshd
PROBE_DEADLINE = 20.0  # and how long it may take to answer one: 30 s in all
DIAL_SECONDS = 10.0

OnRefused = Callable[[str], None]


class Tunnel:
    """Listens on 127.0.0.1:`port` from the moment it is made until `close`.

    `local_port` 0 takes the box's own number where it is free here, else any free one. UsageError
    where a port that was asked for is taken. `on_refused` hears why a connection did not get
    through, once for each reason.
    """

    def __init__(
        self, link: Link, box_port: int, local_port: int = 0, on_refused: OnRefused | None = None
    ) -> None:
        self.link, self.box_port = link, box_port
        self._on_refused = on_refused
        self._told: set[str] = set()
        self._listener = _listen_for(link, box_port, local_port)
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[Any] = []
        self._open = True
        threading.Thread(target=self._accept, name="tunnel", daemon=True).start()

    def wait(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Stay until `ended()`; LinkLost when the box no longer answers."""
        last_probe = time.monotonic()
        while not ended():
            time.sleep(0.2)
            if not alive(self.link):
                raise self._lost()
            if time.monotonic() - last_probe >= PROBE_EVERY:
                if not answers(self.link, PROBE_DEADLINE):
                    raise self._lost()
                last_probe = time.monotonic()

    def close(self) -> None:
        """Free the port and end what runs through it."""
        self._open = False
        for each in (self._listener, *self._ends):
            _shut(each)

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lost(self) -> LinkLost:
        return LinkLost(
            f"{self.link.name}: the connection died, and with it 127.0.0.1:{self.port}",
            "the same command opens it again",
        )

    def _accept(self) -> None:
        while self._open:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        try:
            far = dial(self.link, self.box_port)
        except (BoxUnfit, LinkLost) as no:
            self._tell(no.message)  # first: who sees the end may ask why at once
            _shut(near)
            return
        self._ends += [near, far]
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        for each in (near, far):
            _shut(each)
            self._ends.remove(each)

    def _tell(self, why: str) -> None:
        if self._on_refused and why not in self._told:
            self._told.add(why)
            self._on_refused(why)


def dial(link: Link, port: int) -> Any:
    """A connection to the box's own 127.0.0.1:`port`; BoxUnfit where it does not answer."""
    transport = getattr(link, "transport", None)
    if transport is None:
        return _Pipe(link.pipe(port)) if hasattr(link, "pipe") else _dial_here(link.name, port)
    try:
        return transport.open_channel(
            "direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 0), timeout=DIAL_SECONDS
        )
    except paramiko.ChannelException as no:
        raise _refused(link.name, port, no.code) from no
    except (OSError, EOFError, paramiko.SSHException) as no:
        raise LinkLost(f"{link.name}: the connection died: {no}", "try again") from no


class _Pipe:
    """A child's two pipes as a channel has them."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def recv(self, count: int) -> bytes:
        return os.read(self._child.stdout.fileno(), count)

    def sendall(self, data: bytes) -> None:
        self._child.stdin.write(data)
        self._child.stdin.flush()

    def shutdown_write(self) -> None:
        self._child.stdin.close()

    def close(self) -> None:
        self._child.close()


def alive(link: Link) -> bool:
    """False once the connection is known to be gone."""
    transport = getattr(link, "transport", None)
    return transport is None or bool(transport.is_active())


def answers(link: Link, seconds: float) -> bool:
    """Ask the box's sshd for a sign of life; False without one in `seconds` (a frozen link)."""
    transport = getattr(link, "transport", None)
    if transport is None:
        return True

    def ask() -> None:
        # sshd refuses this request, and that is the sign of life
        with contextlib.suppress(Exception):
            transport.global_request("keepalive@openssh.com", wait=True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return not asking.is_alive() and bool(transport.is_active())


def _dial_here(name: str, port: int) -> socket.socket:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=None)
    except OSError as no:
        raise _refused(name, port, 2) from no


def _refused(name: str, port: int, code: int) -> BoxUnfit:
    """RFC 4254, 5.1: 1 is "administratively prohibited", 2 "connect failed"."""
    if code == 1:
        return BoxUnfit(
            f"{name}: its sshd does not forward ports",
            "set `AllowTcpForwarding yes` in /etc/ssh/sshd_config there",
        )
    return BoxUnfit(f"{name}: nothing listens on its 127.0.0.1:{port}", "is the program up?")


def _listen_for(link: Link, box_port: int, local_port: int) -> socket.socket:
    """On `local_port`; without one on the box's number where that is free, else on any."""
    here = isinstance(link, LocalLink)
    if here and local_port == box_port:  # a tunnel to itself would go round for ever
        raise UsageError(f"port {box_port} of {link.name} is on this machine already", "")
    if not local_port and box_port >= 1024 and not here:
        with contextlib.suppress(UsageError):
            return _listen(box_port)
    return _listen(local_port)


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port), backlog=64)
    except OSError as no:
        raise UsageError(
            f"port {port} of this machine can't be used: {no.strerror}",
            "choose another one with --local",
        ) from no


def _pump(source: Any, target: Any) -> None:
    """Copy until the source ends, then pass the end on (a half-closed connection is a live one)."""
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        if isinstance(target, socket.socket):
            target.shutdown(socket.SHUT_WR)
        else:
            target.shutdown_write()


def _shut(end: Any) -> None:
    """Close a socket, also one that another thread waits on."""
    with contextlib.suppress(OSError, EOFError):
        if isinstance(end, socket.socket):
            end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError, EOFError):
        end.close()
