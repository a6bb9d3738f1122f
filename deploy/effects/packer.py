"""Reads packs in a process of its own: this one makes the plan and the manifest meanwhile.

Python does one thing at a time in a process. Reading and hashing small files is half of an
upload's work on the laptop; a child does it, over its two pipes, and never sees the line:
    in   a pack: (root, offset, members as tuples), or files to hash: (root, None, files as tuples)
    out  each batch of a pack: (bytes of the heads, of the contents, path, files, size), then those
         bytes; at the end [sha256, placed as tuples]; of files, their checksums as a list;
         or {"kind", "message", "hint"} of an error
Each value goes as 4 bytes of big-endian length and then `marshal`: both ends are the same Python.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from deploy.effects.parts import Batch, Pack, PackHere, Placed, sha256_of
from deploy.effects.writer import widen
from deploy.errors import KitError, TransferError, error_named
from deploy.plan.transfer import Found

MANY = 1000  # files of a pack from which on a process is worth its start
KIT = Path(__file__).resolve().parents[2]
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from deploy.effects.packer import serve; serve()"
)


class Packers:
    """The children, made when first needed: one a pack that is sent or waits to be."""

    def __init__(self) -> None:
        self._idle: list[Packer] = []
        self._all: list[Packer] = []

    def warm(self) -> None:
        """A pack of many files will come: have a child started meanwhile."""
        if not self._all:
            self._idle.append(self._new())

    def pack(self, root: str, members: list[Found], offset: int) -> Pack:
        """The pack of these files; where they are many, a child begins to read them now."""
        if len(members) < MANY:
            return PackHere(root, members, offset)
        packer = self._idle.pop() if self._idle else self._new()
        packer.ask(root, members, offset)
        return PackThere(packer, self._idle.append)

    def _new(self) -> Packer:
        packer = Packer()
        self._all.append(packer)
        return packer

    def close(self) -> None:
        for each in self._all:
            each.close()


class Packer:
    """One child; it ends when its input does."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", START, str(KIT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to handle, not the child's
        )
        assert self._process.stdin and self._process.stdout
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout
        widen(self.stdout)

    def ask(self, root: str, members: list[Found], offset: int) -> None:
        """For a pack."""
        self._ask(root, members, offset)

    def ask_sums(self, root: str, files: list[Found]) -> None:
        """For the files' checksums."""
        self._ask(root, files, None)

    def _ask(self, root: str, members: list[Found], offset: int | None) -> None:
        try:
            put(self.stdin, (root, offset, [tuple(each) for each in members]))
            self.stdin.flush()
        except OSError as no:
            raise ended() from no

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class PackThere:
    """A pack that a child reads, which was asked for it already."""

    def __init__(self, packer: Packer, give_back: Callable[[Packer], None]) -> None:
        self.placed: list[Placed] = []
        self.sha256 = ""
        self._packer, self._give_back = packer, give_back

    def __iter__(self) -> Iterator[Batch]:
        source = self._packer.stdout
        try:
            while isinstance(head := get(source), tuple):
                heads, contents, path, files, size = head
                yield Batch(exactly(source, heads), exactly(source, contents), path, files, size)
        except (OSError, EOFError, ValueError) as no:
            raise ended() from no
        self._give_back(self._packer)
        if isinstance(head, dict):
            raise error_named(head["kind"])(head["message"], head["hint"])
        self.sha256, placed = head
        self.placed = [Placed(*each) for each in placed]


def ended() -> TransferError:
    return TransferError("the process that reads the files was ended", "the same command goes on")


def put(end: IO[bytes], value: Any) -> None:
    data = marshal.dumps(value)
    end.write(struct.pack(">I", len(data)))
    end.write(data)


def get(end: IO[bytes]) -> Any:
    """EOFError where the other side has gone."""
    return marshal.loads(exactly(end, struct.unpack(">I", exactly(end, 4))[0]))


def exactly(end: IO[bytes], size: int) -> bytes:
    data = end.read(size)
    if len(data) < size:
        raise EOFError
    return data


def serve() -> None:
    """The child: one pack after the other, until nothing more is asked for."""
    gc.disable()  # nothing here refers to itself
    asked = sys.stdin.buffer
    with contextlib.suppress(EOFError, OSError), os.fdopen(os.dup(1), "wb") as told:
        while True:
            root, offset, members = get(asked)
            files = map(Found._make, members)
            if offset is None:
                answer_sums(root, files, told)
            else:
                answer_pack(PackHere(root, files, offset), told)
            told.flush()


def answer_sums(root: str, files: Iterable[Found], told: IO[bytes]) -> None:
    try:
        put(told, [sha256_of(root, each) for each in files])
    except KitError as no:
        put(told, as_value(no))


def answer_pack(pack: PackHere, told: IO[bytes]) -> None:
    try:
        for heads, contents, *rest in pack:
            put(told, (len(heads), len(contents), *rest))
            told.write(heads)
            told.write(contents)
    except KitError as no:
        put(told, as_value(no))
    else:
        put(told, [pack.sha256, [tuple(each) for each in pack.placed]])


def as_value(fault: KitError) -> dict[str, str]:
    return {"kind": type(fault).__name__, "message": fault.message, "hint": fault.hint}
