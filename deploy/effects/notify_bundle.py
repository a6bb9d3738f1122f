"""Makes Apprise's bundle on the laptop: from locked wheels, once, as one archive named by its hash."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from deploy.effects.bundle import Bundle
from deploy.effects.settings import laptop_folder
from deploy.errors import KitError

LOCK = Path(__file__).with_name("notify.lock")
SECONDS = 600
# Read a notice from stdin, so that the channel's URL, a secret, stands in no list of processes.
SEND = b"""\
import json, os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import apprise
notice = json.load(sys.stdin)
channel = apprise.Apprise()
known = channel.add(notice["url"])
sys.exit(0 if known and channel.notify(title=notice["title"], body=notice["text"]) else 1)
"""


def notify_bundle() -> Bundle:
    """The archive, from ~/.gpubox/cache where it has been made before."""
    name = "notify-" + hashlib.sha256(LOCK.read_bytes() + SEND).hexdigest()[:16]
    folder = laptop_folder() / "cache"
    folder.mkdir(exist_ok=True)
    kept = folder / f"{name}.tar.gz"
    if not kept.is_file():
        temporary = kept.with_suffix(".new")
        temporary.write_bytes(make_archive())
        temporary.replace(kept)
    return Bundle(name, kept.read_bytes())


def make_archive() -> bytes:
    """Wheels for Linux and any Python from 3.9 on, whatever this laptop is; files only."""
    with tempfile.TemporaryDirectory() as folder:
        install_wheels(folder)
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=6) as zipped:
            with tarfile.open(fileobj=zipped, mode="w") as archive:
                add(archive, "send.py", SEND)
                for path in sorted(Path(folder).rglob("*")):
                    if path.is_file():
                        add(archive, path.relative_to(folder).as_posix(), path.read_bytes())
        return packed.getvalue()


def install_wheels(folder: str) -> None:
    wheels = ["--only-binary=:all:", "--platform", "manylinux2014_x86_64", "--implementation", "cp"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
    command += ["--python-version", "3.9", *wheels, "--require-hashes", "--requirement", str(LOCK)]
    done = subprocess.run([*command, "--target", folder], capture_output=True, timeout=SECONDS)
    if done.returncode != 0:
        words = (done.stderr.decode(errors="replace").strip().splitlines() or ["no word"])[-1]
        raise KitError(
            f"Apprise can't be fetched: {words}",
            "a plain webhook (https://…) needs no Apprise; or set pip's index (docs/mirrors.md)",
        )


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    archive.addfile(entry, io.BytesIO(content))
