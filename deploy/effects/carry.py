"""Lets a box without a network fetch its packages through this machine: a small proxy inside the SSH link."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import paramiko

from deploy.errors import BoxUnfit

CHUNK = 64 * 1024
SECONDS = 60
PASSED_ON = ("Range", "If-Range", "If-Modified-Since", "User-Agent", "Accept", "Cache-Control")
PASSED_BACK = ("Content-Type", "Content-Range", "Last-Modified", "ETag", "Accept-Ranges")


class _Proxy(BaseHTTPRequestHandler):
    """GET, HEAD and CONNECT to the hosts of the box's own package sources, to no other."""

    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self._allowed(urlsplit(self.path).hostname):
            return
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        request = urllib.request.Request(self.path, headers=headers, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                self._pass_back(answer.status, answer)
        except urllib.error.HTTPError as answer:
            with answer:
                self._pass_back(answer.code, answer)
        except (OSError, ValueError) as no:
            self.send_error(502, str(no)[:200])

    do_HEAD = do_GET

    def _pass_back(self, status: int, answer: Any) -> None:
        self.send_response(status)
        for name in PASSED_BACK:
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        length = answer.headers.get("Content-Length")
        if length is None and status not in (204, 304):
            self.close_connection = True
            self.send_header("Connection", "close")
        elif length is not None:
            self.send_header("Content-Length", length)
        self.end_headers()
        while self.command == "GET" and (data := answer.read(CHUNK)):
            self.wfile.write(data)

    def do_CONNECT(self) -> None:
        host, _, port = self.path.rpartition(":")
        if not self._allowed(host.strip("[]")):
            return
        try:
            far = socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS)
        except (OSError, ValueError) as no:
            self.send_error(502, str(no)[:200])
            return
        self.close_connection = True
        self.send_response(200, "Connection established")
        self.end_headers()
        far.settimeout(None)
        join_ends(self.connection, far)

    def _allowed(self, host: str | None) -> bool:
        allowed = host in self.server.hosts
        if not allowed:
            self.send_error(403, "not one of the box's package sources")
        return allowed


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hosts: Collection[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Proxy)
        self.hosts = set(hosts)


def join_ends(one: Any, other: Any) -> None:
    """Copy bytes both ways until one side ends, then close both."""
    back = threading.Thread(target=_pump, args=(other, one), daemon=True)
    back.start()
    _pump(one, other)
    back.join()
    for end in (one, other):
        with contextlib.suppress(OSError, EOFError):
            end.close()


def _pump(source: Any, sink: Any) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        sink.shutdown(socket.SHUT_WR) if isinstance(sink, socket.socket) else sink.shutdown_write()


@contextmanager
def carried(transport: Any, urls: Collection[str]) -> Iterator[str]:
    """The address, on the box, of a proxy that reaches the hosts of `urls` through this machine.

    Only for as long as the block runs. BoxUnfit where the box's sshd allows no forwarding.
    """
    server = _Server({urlsplit(url).hostname or "" for url in urls})
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def arrived(channel: Any, origin: Any, where: Any) -> None:
        near = socket.create_connection(("127.0.0.1", server.server_port))
        threading.Thread(target=join_ends, args=(near, channel), daemon=True).start()

    try:
        port = transport.request_port_forward("127.0.0.1", 0, arrived)
    except paramiko.SSHException as no:
        server.shutdown()
        raise BoxUnfit(
            "the box has no network, and its sshd forwards no port for one",
            "AllowTcpForwarding remote in its sshd_config, or give it a network for now",
        ) from no
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(Exception):
            transport.cancel_port_forward("127.0.0.1", port)
        server.shutdown()
        server.server_close()
