"""Looks for the marks by which the laptop tells whose box this is; reads only, decides nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Any

from .environment import known_environment
from .facts import in_container
from .rehearsal import sudo_problems

DMI = "/sys/class/dmi/id"
DMI_FIELDS = ("product_name", "sys_vendor", "chassis_asset_tag", "product_uuid", "product_serial")
SECONDS = 1.0


def marks(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Request: {env: [names], files: [paths], metadata: {name: {host, path, headers}}}.

    Answer: which of them are there. DMI is left out in a container, which shows its host's.
    """
    env = known_environment()
    dmi = {} if in_container() else {name: read_line(f"{DMI}/{name}") for name in DMI_FIELDS}
    return {
        "env": [name for name in request.get("env", []) if env.get(name)],
        "files": [path for path in request.get("files", []) if os.path.exists(path)],
        "dmi": {name: value for name, value in dmi.items() if value},
        "metadata": ask_all(request.get("metadata", {})),
        "host": socket.gethostname(),
        "container": in_container(),
        "systemd": os.path.isdir("/run/systemd/system"),
        "root": os.getuid() == 0,
        "sudo": os.getuid() != 0 and not sudo_problems(["sudo", "-n", "systemctl", "poweroff"]),
    }


def read_line(path: str) -> str:
    with contextlib.suppress(OSError):
        with open(path, errors="replace") as file:
            return file.readline().strip()
    return ""


def ask_all(addresses: dict[str, dict[str, str]]) -> list[str]:
    """Which of the providers' addresses answer; all asked at once, since most never will."""
    found: list[str] = []

    def ask(name: str) -> None:
        if answers(**addresses[name]):
            found.append(name)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in addresses]
    for each in threads:
        each.start()
    deadline = time.monotonic() + 1.5 * SECONDS
    for each in threads:
        each.join(max(0.0, deadline - time.monotonic()))
    return sorted(found)


def answers(host: str, path: str, want: str, headers: str = "", method: str = "GET") -> bool:
    """True where the provider's metadata address answers 200 and `want` stands in its answer.

    Straight, past any proxy, within a second: there is none on most boxes.
    """
    asked = f"{method} {path} HTTP/1.0\r\nHost: {host}\r\n{headers}\r\n"
    with contextlib.suppress(OSError):
        with socket.create_connection((host, 80), timeout=SECONDS) as line:
            line.sendall(asked.encode())
            answer = line.recv(4096).decode(errors="replace")
        return " 200 " in answer.splitlines()[0] and want.lower() in answer.lower()
    return False
