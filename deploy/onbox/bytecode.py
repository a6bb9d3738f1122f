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
            entries = source.infolist()
            texts = {entry.filename: source.read(entry) for entry in entries}
            modules = {os.path.join(final, name): name for name in texts if name.endswith(".py")}
            compiled = bytecodes([(texts[name], path) for path, name in modules.items()])
            for entry in entries:
                target.writestr(entry, texts[entry.filename])
            for name, code in zip(modules.values(), compiled):
                target.writestr(zipfile.ZipInfo(name + "c", (1980, 1, 1, 0, 0, 0)), code)
        os.replace(new, archive)
    finally:
        if os.path.exists(new):
            os.unlink(new)
    note = os.path.join(os.path.dirname(final), "python")
    with open(note + ".new", "w") as file:
        file.write(sys.executable + "\n")
    os.replace(note + ".new", note)


def bytecodes(sources: list[tuple[bytes, str]]) -> list[bytes]:
    """Of modules (text and path); half of them by a child, as the first request waits for it."""
    half = len(sources) // 2
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writer, "wb") as out:
                out.write(marshal.dumps([_bytecode(*each) for each in sources[half:]]))
        finally:
            os._exit(0)  # what did not come is missed below
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        mine = [_bytecode(*each) for each in sources[:half]]
        theirs: list[bytes] = marshal.loads(answer.read())
    os.waitpid(child, 0)
    return mine + theirs


def _bytecode(text: bytes, path: str) -> bytes:
    code = compile(text, path, "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + struct.pack("<I", UNCHECKED)
    return head + importlib.util.source_hash(text) + marshal.dumps(code)
