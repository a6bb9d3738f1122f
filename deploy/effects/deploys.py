"""This laptop's deploys that are going on: a file each, so that a later one knows which are dead."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.effects.copies import write_atomically
from deploy.effects.settings import laptop_folder


def _folder() -> Path:
    return laptop_folder() / "deploys"


@contextmanager
def registered(why: str) -> Iterator[dict[str, Any]]:
    """Who we are, as the box's lock says it: token, who, host, pid, why; forgotten at the end."""
    me = {
        "token": secrets.token_hex(8),
        "who": f"{getpass.getuser()}@{socket.gethostname()}",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "why": why,
    }
    path = _folder() / f"{me['token']}.json"
    write_atomically(path, json.dumps({"schema": 1, **me, "since": time.time()}).encode())
    try:
        yield me
    finally:
        path.unlink(missing_ok=True)


def dead_tokens() -> list[str]:
    """Tokens of deploys of this laptop whose process is gone; remembered for a day."""
    found = []
    for path in _folder().glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            deploy = json.loads(path.read_bytes())
            if deploy["host"] != socket.gethostname() or _alive(int(deploy["pid"])):
                continue
            found.append(deploy["token"])
            if time.time() - deploy["since"] > 86400:
                path.unlink()
    return found


def _alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # Windows has no harmless way to ask; its locks die by their age
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
