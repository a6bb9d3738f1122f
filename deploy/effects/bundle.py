"""Packs deploy/onbox into one zipapp, the same bytes for the same sources, named by its hash."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).resolve().parent.parent / "onbox"
START = b"import sys\nfrom onbox.__main__ import main\nsys.exit(main(sys.argv))\n"


class Bundle(NamedTuple):
    name: str  # onbox-HASH.pyz
    content: bytes


@lru_cache(maxsize=1)
def onbox_bundle() -> Bundle:
    """The zipapp of today's sources; fixed timestamps, so that only a change changes its name."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry("__main__.py"), START)
        for source in sorted(SOURCES.rglob("*")):
            if source.suffix in {".py", ".json", ".txt"}:
                name = "onbox/" + source.relative_to(SOURCES).as_posix()
                archive.writestr(_entry(name), source.read_bytes())
    content = packed.getvalue()
    return Bundle(f"onbox-{hashlib.sha256(content).hexdigest()[:16]}.pyz", content)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
