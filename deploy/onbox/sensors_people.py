"""Sensors of people: typing in terminals, editors without one (VS Code and its kin), notebooks."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import socket
import time
from typing import Any

from .idle import ABSENT, ACTIVE, IDLE, UNKNOWN, Signal
from .locks import process_start
from .places import own_folder
from .sensors_gpu import cpu_seconds

EDITORS = (".vscode-server", ".cursor-server", ".windsurf-server", ".vscodium-server")
EDITOR_BUSY = 0.02  # of a core; a server whose window nobody touches stays well below
ASK_SECONDS = 2.0
ANSWER_LIMIT = 1 << 20


class Terminals:
    """Every pseudo-terminal of this box. Reading input moves its access time, so a session that
    sshd, tmux or anything else holds counts only while somebody types."""

    def __init__(self, recent: float, folder: str = "/dev/pts") -> None:
        self.recent, self.folder = recent, folder
        self._seen: dict[str, int] | None = None

    def read(self, at: float) -> Signal:
        seen: dict[str, int] = {}
        for name in os.listdir(self.folder):
            with contextlib.suppress(OSError):
                if name.isdigit():
                    seen[name] = os.stat(os.path.join(self.folder, name)).st_atime_ns
        before, self._seen = self._seen, seen
        if before is None:  # no look before: the wall clock is all there is
            typed = [n for n, a in seen.items() if abs(time.time() - a / 1e9) < self.recent]
        else:
            typed = [name for name, sign in seen.items() if before.get(name) != sign]
        if typed:
            return Signal(ACTIVE, "typing at " + ", ".join(f"pts/{each}" for each in sorted(typed)))
        return Signal(IDLE, f"{len(seen)} open, nobody types" if seen else "none")


class Editors:
    """VS Code's remote server and its kin have no terminal: their processes' work is the sign."""

    def __init__(self, home: str = "") -> None:
        self.home = home or os.path.expanduser("~")
        self._ours: dict[int, bool] = {}
        self._last: tuple[float, int] | None = None

    def read(self, at: float) -> Signal:
        if not any(os.path.isdir(os.path.join(self.home, each)) for each in EDITORS):
            return Signal(ABSENT, "no editor's server")
        pids = self._pids()
        used = sum(cpu_seconds(pid) or 0 for pid in pids)
        last, self._last = self._last, (at, used)
        if not pids:
            return Signal(IDLE, "none")
        if last is None or at <= last[0]:
            return Signal(IDLE, f"{len(pids)} processes")
        share = max(0.0, (used - last[1]) / 100 / (at - last[0]))
        return Signal(ACTIVE if share >= EDITOR_BUSY else IDLE, f"{share * 100:.1f} % of a core")

    def _pids(self) -> list[int]:
        """The servers' processes; a command line is read once in a process's life."""
        alive = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        self._ours = {pid: self._is_editor(pid) for pid in alive}
        return [pid for pid, ours in self._ours.items() if ours]

    def _is_editor(self, pid: int) -> bool:
        if pid in self._ours:
            return self._ours[pid]
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read(4096)
            return any(f"/{each}/".encode() in line for each in EDITORS)
        return False


class Notebooks:
    """Jupyter servers: a busy kernel, or a kernel or terminal whose last activity moves."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}

    def read(self, at: float) -> Signal:
        signals = [self._server(path) for path in servers()]
        signals = [each for each in signals if each.state != ABSENT]
        for state in (ACTIVE, UNKNOWN, IDLE):
            told = [each.detail for each in signals if each.state == state]
            if told:
                return Signal(state, ", ".join(told))
        return Signal(ABSENT, "no notebook server")

    def _server(self, path: str) -> Signal:
        try:
            with open(path) as file:
                server = json.load(file)
            if server.get("pid") and not process_start(int(server["pid"])):
                return Signal(ABSENT)  # its file outlived it
            rows = [ask(server, "api/kernels"), ask(server, "api/terminals")]
        except (OSError, ValueError, KeyError) as no:
            return Signal(UNKNOWN, f"{os.path.basename(path)}: {no}")
        return self._judge(path, [row for part in rows for row in part])

    def _judge(self, path: str, rows: list[dict[str, Any]]) -> Signal:
        busy = [row for row in rows if row.get("execution_state") == "busy"]
        signs = sorted(str(row.get("last_activity")) for row in rows)
        before, self._seen[path] = self._seen.get(path), signs
        if busy:
            return Signal(ACTIVE, f"{len(busy)} kernel(s) busy")
        if before is not None and before != signs:
            return Signal(ACTIVE, "a notebook in use")
        return Signal(IDLE, f"{len(rows)} kernel(s) and terminal(s) at rest")


def servers() -> list[str]:
    """Files in which servers tell their address and token: Jupyter's own, and those that the kit
    writes for servers in containers."""
    runtime = os.environ.get("JUPYTER_RUNTIME_DIR") or "~/.local/share/jupyter/runtime"
    patterns = [
        os.path.join(os.path.expanduser(runtime), f"{kind}server-*.json") for kind in ("jp", "nb")
    ]
    patterns.append(os.path.join(own_folder(), "jupyter", "*.json"))
    return [path for pattern in patterns for path in sorted(glob.glob(pattern))]


def ask(server: dict[str, Any], what: str) -> list[dict[str, Any]]:
    """GET one list of the server's API. By hand: an HTTP library would double the keeper's size.

    OSError where nobody answers, ValueError where it is not what we asked for. 404: no such part.
    """
    scheme, _, rest = str(server["url"]).partition("://")
    address, _, base = rest.partition("/")
    host, _, port = address.rpartition(":")
    if scheme != "http":
        raise ValueError("a server with TLS can't be asked")
    base = "/" + base.strip("/") + "/" if base.strip("/") else "/"
    lines = [f"GET {base}{what} HTTP/1.0", f"Host: {address}"]
    lines.append("Authorization: token {}".format(server.get("token", "")))
    with socket.create_connection((host.strip("[]"), int(port)), timeout=ASK_SECONDS) as line:
        line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return body_of(receive(line))


def receive(line: socket.socket) -> bytes:
    data, deadline = b"", time.monotonic() + ASK_SECONDS
    while len(data) < ANSWER_LIMIT and time.monotonic() < deadline:
        more = line.recv(65536)
        if not more:
            return data
        data += more
    raise ValueError("no end of the answer")


def body_of(answer: bytes) -> list[dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status == [b"404"]:
        return []
    if status != [b"200"]:
        raise ValueError("answers " + head.splitlines()[0].decode(errors="replace")[:60])
    rows = json.loads(body)
    if not isinstance(rows, list):
        raise ValueError("no list")
    return rows
