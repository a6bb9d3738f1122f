"""Reads a tar, plain or compressed, as one stream of members with a running checksum."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import tarfile
import threading
from typing import IO, Any, Generator

from .manifest import FILE, FOLDER, LINK, Entry
from .member import HARD_LINK, OTHER, Member
from .reading import CHUNK, Range, read_ahead
from .refusal import Refusal


def tar_members(path: str, entry: Entry) -> Generator[Member, None, None]:
    """The members of a tar, read as one stream; its checksum is held to the manifest's at the end."""
    name, source = path.lower(), Source(path, entry.size)
    unzstd = Unzstd(source) if name.endswith(".zst") else None
    mode: Any = "r|xz" if name.endswith("xz") else "r|gz" if name.endswith("gz") else "r|"
    stream: Any = unzstd.stdout if unzstd else source
    try:
        with tarfile.open(
            None, mode, stream, encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for info in iter(archive.next, None):
                yield tar_member(archive, info)
                archive.members.clear()  # type: ignore[attr-defined]  # else it keeps all
        if unzstd:
            unzstd.end()
        source.drain()
        if source.digest.hexdigest() != entry.sha256:
            raise Refusal(
                "VerifyError", f"{path} does not have its checksum", "upload it again: fab upload"
            )
        if mode == "r|" and not unzstd and any(source.tail[-512:]):
            raise tarfile.ReadError("it ends in the middle")
    finally:
        if unzstd:
            unzstd.stop()
        source.close()


def tar_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Member:
    kind = OTHER
    if info.isfile():
        kind = FILE
    elif info.isdir():
        kind = FOLDER
    elif info.issym():
        kind = LINK
    elif info.islnk():
        kind = HARD_LINK
    absolute = "/" if info.name.startswith("/") else ""
    return Member(
        absolute + info.name.lstrip("/"),
        kind,
        info.mode,
        int(info.mtime),
        info.linkname,
        lambda: _content(archive, info),
        info.size,
    )


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    found = archive.extractfile(info)
    if found is None:
        raise tarfile.ReadError(f"no content for {info.name}")
    return found


class Source:
    """The archive as a stream with a running checksum, read ahead in long ranges."""

    def __init__(self, path: str, size: int) -> None:
        self.digest = hashlib.sha256()
        self.tail = b""
        self._blocks = read_ahead(Range(path, at, CHUNK) for at in range(0, size, CHUNK))
        self._rest = b""

    def read(self, count: int = -1) -> bytes:
        while count < 0 or len(self._rest) < count:
            block = next(self._blocks, b"")
            if not block:
                break
            self.digest.update(block)
            self.tail = (self.tail + block)[-1024:]
            self._rest += block
        if count < 0:
            count = len(self._rest)
        data, self._rest = self._rest[:count], self._rest[count:]
        return data

    def drain(self) -> None:
        while self.read(CHUNK):
            pass

    def close(self) -> None:
        self._blocks.close()  # type: ignore[attr-defined]


class Unzstd:
    """The zstd program between the archive and tarfile (no Python before 3.14 can read it)."""

    def __init__(self, source: Source) -> None:
        try:
            self._program = subprocess.Popen(
                ["zstd", "-dcq"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise Refusal(
                "BoxUnfit", "no zstd program here", "apt-get install zstd, or use .tar.gz"
            ) from None
        assert self._program.stdin and self._program.stdout
        self.stdout: IO[bytes] = self._program.stdout
        self._thread = threading.Thread(target=self._feed, args=(source,), daemon=True)
        self._thread.start()

    def _feed(self, source: Source) -> None:
        assert self._program.stdin
        with contextlib.suppress(OSError, ValueError):
            for block in iter(lambda: source.read(1 << 20), b""):
                self._program.stdin.write(block)
            self._program.stdin.close()

    def end(self) -> None:
        """EOFError where the program says that its input was damaged."""
        while self.stdout.read(1 << 20):
            pass
        self._thread.join()
        if self._program.wait() != 0:
            raise EOFError("the zstd stream is damaged or ends early")

    def stop(self, let_go: bool = False) -> None:
        """let_go  come back only when the source is no longer read; it must be one that never waits"""
        self._program.kill()
        self._program.wait()
        if let_go:
            self._thread.join()
        self.stdout.close()
