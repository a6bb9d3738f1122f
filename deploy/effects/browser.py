"""The laptop's browser, where there is one; an address with a secret in it never reaches an argv."""

from __future__ import annotations

import contextlib
import html
import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path


def can_open() -> bool:
    """True with a desktop to open a window on (a text browser would take the terminal away)."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform not in ("darwin", "win32") and not any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    ):
        return False
    with contextlib.suppress(webbrowser.Error):
        return webbrowser.get() is not None
    return False


def open_file(path: Path) -> bool:
    """Show a page of this machine; False where no browser came up."""
    return can_open() and webbrowser.open(path.resolve().as_uri())


@contextlib.contextmanager
def door(url: str) -> Iterator[Path]:
    """A page, readable by us alone, that leads to `url`; it is gone when the block ends.

    Browsers are started with the address in their arguments, which everyone on this machine can
    read: so they get this file's name, and the token stays inside.
    """
    folder = tempfile.mkdtemp(prefix="gpubox-")  # mode 0700
    path = Path(folder) / "open.html"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(
                '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0;url={html.escape(url)}">'
                f'<title>gpubox</title><a href="{html.escape(url)}">go on</a>\n'
            )
        yield path
    finally:
        path.unlink(missing_ok=True)
        Path(folder).rmdir()
