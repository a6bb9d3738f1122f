"""Looks into an archive before it goes up: what the box would refuse when unpacking is refused here."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from deploy.effects.scan import Alike
from deploy.errors import error_named
from deploy.onbox.judging import DAMAGE, Judge, damaged
from deploy.onbox.manifest import FILE
from deploy.onbox.member import Member
from deploy.onbox.refusal import Refusal
from deploy.onbox.tars import tar_member
from deploy.onbox.zips import zip_members

OnBytes = Callable[[int], None]


class Contents(NamedTuple):
    """What an archive holds: files, their bytes unpacked, and pairs of names that look alike."""

    files: int
    bytes: int
    alike: list[tuple[str, str]]


def can_look_into(path: str) -> bool:
    """A .tar.zst needs the program `zstd` here; without it only the box looks."""
    return not path.lower().endswith(".zst") or shutil.which("zstd") is not None


def look_into(path: str, zip_names: str, on_bytes: OnBytes) -> Contents:
    """Go through all members; DataError for one that leads out, for a bomb, and for damage.

    `on_bytes` is told how far into the archive it is.
    """
    name = os.path.basename(path)
    judge, alike = Judge(name, os.path.getsize(path)), Alike()
    try:
        with contextlib.closing(_members(path, zip_names, on_bytes)) as members:
            for member in members:
                if place := judge.path_of(member):
                    alike.see(place)
                    if member.type == FILE:
                        judge.files += 1
                        judge.count(member.size, member)
        judge.end()
    except DAMAGE as no:
        raise _as_ours(damaged(name, no)) from no
    except Refusal as no:
        raise _as_ours(no) from no
    return Contents(judge.files, judge.bytes, alike.pairs)


def _as_ours(no: Refusal) -> Exception:
    return error_named(no.kind)(no.message, no.hint)


def _members(path: str, zip_names: str, on_bytes: OnBytes) -> Any:
    if path.lower().endswith(".zip"):
        return zip_members(path, zip_names)
    return _tar_members(path, on_bytes)


def _tar_members(path: str, on_bytes: OnBytes) -> Iterator[Member]:
    name = path.lower()
    mode: Any = "r|xz" if name.endswith("xz") else "r|gz" if name.endswith("gz") else "r|"
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open(path, "rb", buffering=0))
        stream: Any = file
        if name.endswith(".zst"):
            stream = opened.enter_context(_unzstd(file))
        elif mode == "r|":
            mode = "r:"  # contents are passed over unread
        archive = opened.enter_context(
            tarfile.open(None, mode, stream, encoding="utf-8", errors="surrogateescape")
        )
        for info in iter(archive.next, None):
            yield tar_member(archive, info)
            archive.members.clear()  # type: ignore[attr-defined]  # else it keeps all
            on_bytes(file.tell())
        if mode == "r:":
            file.seek(-512, os.SEEK_END)
            if any(file.read(512)):
                raise tarfile.ReadError("it ends in the middle")


@contextlib.contextmanager
def _unzstd(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The content of a .zst file; EOFError at its end where it was damaged."""
    program = subprocess.Popen(
        ["zstd", "-dcq"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert program.stdout
    try:
        yield program.stdout
        while program.stdout.read(1 << 20):
            pass
        if program.wait() != 0:
            raise EOFError("the zstd stream is damaged or ends early")
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
