"""Unpacks Apprise's bundle to ~/.gpubox/notify-HASH; the keeper's deciding never needs it."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import tempfile
from typing import Any

from .places import own_folder
from .publish import publish_folder
from .refusal import Refusal

OLDEST = (3, 9)


def folder_of(request: dict[str, Any]) -> str:
    if not re.fullmatch(r"notify-[0-9a-f]{16}", request["name"]):
        raise Refusal("UsageError", "not the name of a bundle", "")
    return os.path.join(own_folder(), request["name"])


def ready(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Request: {name}. Answer: {there}; a Refusal where this Python can't run it."""
    if sys.version_info < OLDEST:
        raise Refusal(
            "BoxUnfit",
            "Apprise needs Python 3.9, the box has {}.{}".format(*sys.version_info),
            "use a plain webhook (https://…), or install a newer Python there",
        )
    return {"there": os.path.isfile(os.path.join(folder_of(request), "send.py"))}


def install(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Request: {name}, then the archive. Only plain files inside the folder are unpacked."""
    final = folder_of(request)
    temporary = tempfile.mkdtemp(prefix=".new-notify-", dir=own_folder())
    try:
        with tarfile.open(fileobj=wire.input, mode="r|gz") as archive:
            for member in archive:
                unpack(archive, member, temporary)
        shutil.rmtree(final, ignore_errors=True)
        publish_folder(temporary, final)
    except (tarfile.TarError, EOFError, OSError) as no:
        raise Refusal("TransferError", f"Apprise did not arrive whole: {no}", "do it again") from no
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"there": True}


def unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    path = os.path.normpath(os.path.join(folder, member.name))
    content = archive.extractfile(member) if member.isreg() else None
    if content is None or not path.startswith(folder + os.sep):
        raise tarfile.TarError(f"unexpected member {member.name!r}")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "wb") as file:
        shutil.copyfileobj(content, file)
