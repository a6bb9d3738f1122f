"""Compiles our own program as it is installed, so that no request compiles it again."""

from __future__ import annotations

import importlib.util
import marshal
import os
import struct
import sys
import zipfile

UNCHECKED = 0b01  # flags of a .pyc that is taken without a look at its source (PEP 552)


def compile_own(archive: str, final: str) -> None:
    """Add a .pyc beside every .py of the zipapp at `archive`, which is to be renamed to `final`,
    and note in the file `python` beside it which Python has done so.

    An import takes a .pyc of its own version and else the source, so that another Python can still
    run it. Whatever fails leaves the zipapp as it was.
    """
    new = archive + ".compiled"
    try:
        with zipfile.ZipFile(archive) as source, zipfile.ZipFile(new, "w") as target:
            for entry in source.infolist():
                text = source.read(entry)
                target.writestr(entry, text)
                if entry.filename.endswith(".py"):
                    stored = zipfile.ZipInfo(entry.filename + "c", entry.date_time)
                    target.writestr(stored, _bytecode(text, os.path.join(final, entry.filename)))
        os.replace(new, archive)
    finally:
        if os.path.exists(new):
            os.unlink(new)
    note = os.path.join(os.path.dirname(final), "python")
    with open(note + ".new", "w") as file:
        file.write(sys.executable + "\n")
    os.replace(note + ".new", note)


def _bytecode(text: bytes, path: str) -> bytes:
    code = compile(text, path, "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + struct.pack("<I", UNCHECKED)
    return head + importlib.util.source_hash(text) + marshal.dumps(code)
