"""A box's way out through this machine: only to its own package sources, only while it is open."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy.effects.carry import carried
from deploy.errors import BoxUnfit

pytestmark = pytest.mark.sshd

# What a package client on the box does, by way of the proxy in its environment.
FETCH = """
import sys, urllib.request, urllib.error
opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": sys.argv[1]}))
request = urllib.request.Request(sys.argv[2], headers={"Range": "bytes=2-"})
try:
    answer = opener.open(request, timeout=20)
    sys.stdout.write("%d %s" % (answer.status, answer.read().decode()))
except urllib.error.HTTPError as no:
    sys.stdout.write("%d" % no.code)
"""
CONNECT = """
import socket, sys
host, port = sys.argv[1].rsplit("/", 1)[-1].split(":")
link = socket.create_connection((host, int(port)), 20)
link.sendall(b"CONNECT " + sys.argv[2].encode() + b" HTTP/1.1\\r\\n\\r\\n")
head = link.recv(1000)
if b" 200 " in head:
    link.sendall(b"GET /tunnel HTTP/1.0\\r\\n\\r\\n")
    while True:
        more = link.recv(1000)
        if not more:
            break
        head += more
sys.stdout.write(head.decode())
"""


@pytest.fixture
def mirror():
    """A package source that only this machine reaches (as the test pretends)."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/missing":
                self.send_error(404)
                return
            part = self.headers.get("Range")
            body = b"0123456789"[2 if part == "bytes=2-" else 0 :]
            self.send_response(206 if part else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


def on_box(link, script, *words):
    command = "exec python3 - " + " ".join(f"'{word}'" for word in words)
    return link.run(command, script.encode()).stdout.decode()


def test_the_boxs_own_sources_are_reached_and_nothing_else(sshd, mirror):
    link = sshd().link()
    source = f"http://127.0.0.1:{mirror}/dists"
    with carried(link.transport, [source]) as proxy:
        assert on_box(link, FETCH, proxy, source) == "206 23456789"
        assert on_box(link, FETCH, proxy, f"http://127.0.0.1:{mirror}/missing") == "404"
        assert on_box(link, FETCH, proxy, f"http://localhost:{mirror}/") == "403"
        tunnel = on_box(link, CONNECT, proxy, f"127.0.0.1:{mirror}")
        assert tunnel.endswith("0123456789")
        assert " 403 " in on_box(link, CONNECT, proxy, f"localhost:{mirror}")
    assert on_box(link, FETCH, proxy, source) == ""  # it is closed again
    link.close()


def test_a_box_that_forwards_nothing_is_told_so(sshd):
    link = sshd(extra="AllowTcpForwarding no").link()
    with pytest.raises(BoxUnfit, match="forwards no port") as caught:
        with carried(link.transport, ["http://mirror/"]):
            pass
    assert "AllowTcpForwarding" in caught.value.hint
