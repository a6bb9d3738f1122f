"""A TCP relay that adds a delay each way: the line of a far box, in user space."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def relay(port: int, one_way: float) -> Iterator[int]:
    """The port of a relay on 127.0.0.1 to `port` there; every byte is `one_way` seconds late."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, port, one_way), daemon=True).start()
        yield server.getsockname()[1]


def _accept(server: socket.socket, port: int, one_way: float) -> None:
    with contextlib.suppress(OSError):
        while True:
            near, _ = server.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target in ((near, far), (far, near)):
                _carry(source, target, one_way)


def _carry(source: socket.socket, target: socket.socket, one_way: float) -> None:
    """Read at once, write when its time has come: the delay takes no bandwidth away."""
    waiting: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def read() -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            waiting.put((time.monotonic() + one_way, data))

    def write() -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            with contextlib.suppress(OSError):
                if data:
                    target.sendall(data)
                    continue
                target.shutdown(socket.SHUT_WR)
            return

    for work in (read, write):
        threading.Thread(target=work, daemon=True).start()
