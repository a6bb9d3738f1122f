"""Receives a run's files: checkpoints verified and put in place by a rename, LATEST last."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from deploy.effects.agent import Agent, read_frames
from deploy.effects.copies import write_atomically
from deploy.effects.link import Done, Stream
from deploy.errors import VerifyError
from deploy.onbox.wire import BULK
from deploy.plan.fetch import is_step, make_room, newest, safe_path

SUMS = "SHA256SUMS"
PASSING = ".passing.json"
OnBytes = Callable[[int], None]


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in pieces."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        for data in iter(lambda: file.read(1 << 20), b""):
            total.update(data)
    return total.hexdigest()


class Homecoming:
    """One run's folder at home, `folder`, laid out as on the box."""

    def __init__(self, folder: Path, on_bytes: OnBytes = lambda count: None) -> None:
        self.folder = folder
        self.checkpoints = folder / "output" / "checkpoints"
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self._on_bytes = on_bytes
        self.got: dict[str, Any] = {}

    def request(self, which: Any, files: bool) -> dict[str, Any]:
        """What is home already, as the box wants to hear it."""
        return {
            "which": which,
            "have": {name: digest_of(self.checkpoints / name / SUMS) for name in self.steps()},
            "partial": {path.name[6:]: _partial(path) for path in self._parts()},
            "files": self._others() if files else None,
        }

    def steps(self) -> list[str]:
        """The whole checkpoints at home."""
        found = [path.parent.name for path in self.checkpoints.glob(f"step_*/{SUMS}")]
        return sorted(name for name in found if is_step(name))

    def _parts(self) -> list[Path]:
        return [p for p in self.checkpoints.glob(".part-step_*") if (p / SUMS).is_file()]

    def _others(self) -> dict[str, Any]:
        found = {}
        for path in self.folder.rglob("*"):
            inside = path.relative_to(self.folder)
            if inside.parts[:2] != ("output", "checkpoints") and path.is_file():
                content = {"size": path.stat().st_size, "sha256": digest_of(path)}
                found[inside.as_posix()] = content
        return found

    def receive(self, box: Agent, run: str, which: Any, files: bool) -> dict[str, Any]:
        """One fetch: {steps, kept, dropped, files, bytes, begin}. LinkLost keeps what has come."""
        self.got = {"steps": [], "kept": [], "dropped": {}, "files": [], "bytes": 0, "begin": {}}
        stream = box.open("send", run=run, **self.request(which, files))
        drain(stream.stderr)
        try:
            stream.stdin.close()
            self._take(_Bulk(box, "send", stream).frames())
        finally:
            stream.close()
        self._point()
        return self.got

    def _take(self, frames: Iterator[bytes]) -> None:
        writer: _Writer | None = None
        try:
            for frame in frames:
                if frame[:1] == b"D" and writer:
                    writer.write(frame[1:])
                    self.got["bytes"] += len(frame) - 1
                    self._on_bytes(len(frame) - 1)
                    continue
                message = json.loads(frame[1:])
                if message["kind"] == "file":
                    writer = self._writer(message)
                elif message["kind"] == "end" and writer:
                    writer.done()
                    writer = None
                else:
                    self._note(message)
        finally:
            if writer:
                writer.abandon()

    def _note(self, message: dict[str, Any]) -> None:
        kind, step = message["kind"], str(message.get("step", ""))
        if step and not is_step(step):
            raise VerifyError(f"the box names a checkpoint {step!r}", "")
        if kind == "begin":
            self.got["begin"] = message
        elif kind == "step":
            self._begin_step(step, message["sums"])
        elif kind == "step-end":
            self._publish(step)
        elif kind == "dropped":
            shutil.rmtree(self._part(step), ignore_errors=True)
            self.got["dropped"][step] = message["why"]
        elif kind == "kept" and step:
            self.got["kept"].append(step)

    def _part(self, step: str) -> Path:
        return self.checkpoints / f".part-{step}"

    def _begin_step(self, step: str, sums: str) -> None:
        part = self._part(step)
        if (part / SUMS).is_file() and digest_of(part / SUMS) != sums:
            shutil.rmtree(part)
        part.mkdir(exist_ok=True)

    def _writer(self, message: dict[str, Any]) -> _Writer:
        path = safe_path(message["path"])
        step, _, name = path.partition("/")
        if is_step(step):
            return _Writer(self._part(step) / name, message["offset"])
        self.got["files"].append(path)
        return _Writer(self.folder / path, message["offset"], replace=message["offset"] == 0)

    def _publish(self, step: str) -> None:
        """Verify against the workload's own checksums, sync, rename."""
        part, final = self._part(step), self.checkpoints / step
        wrong = damage(part)
        if wrong:
            shutil.rmtree(part)
            raise VerifyError(f"{step}: {wrong} does not have its checksum", "fetch it again")
        if final.exists():
            shutil.rmtree(self.checkpoints / f".old-{step}", ignore_errors=True)
            final.rename(self.checkpoints / f".old-{step}")
        part.rename(final)
        _sync_folder(self.checkpoints)
        shutil.rmtree(self.checkpoints / f".old-{step}", ignore_errors=True)
        self.got["steps"].append(step)

    def make_room(self, which: str, keep: int) -> list[str]:
        """After a fetch: remember what came by a plain one, and remove what gives way to it."""
        path = self.checkpoints / PASSING
        passing: set[str] = set()
        with contextlib.suppress(OSError, ValueError, KeyError):
            passing = set(json.loads(path.read_bytes())["steps"])
        if which == "last":
            passing |= set(self.got["steps"])
        elif which == "all":
            passing = set()
        best = self.checkpoints / "best"
        named = best.read_text().strip() if best.is_file() else ""
        old = make_room(passing, self.steps(), named, keep)
        content = {"schema": 1, "steps": sorted(passing & set(self.steps()) - set(old))}
        write_atomically(path, json.dumps(content).encode())
        for step in old:
            grave = self.checkpoints / f".old-{step}"
            (self.checkpoints / step).rename(grave)
            shutil.rmtree(grave, ignore_errors=True)
        return old

    def _point(self) -> None:
        """LATEST and best, after everything they name is in place."""
        steps, best = self.steps(), str(self.got["begin"].get("best", ""))
        if best in steps:
            write_atomically(self.checkpoints / "best", best.encode() + b"\n")
        if steps:
            write_atomically(self.checkpoints / "LATEST", newest(steps).encode() + b"\n")


class _Writer:
    """One file as it comes in: in place from its offset on, or whole under another name."""

    def __init__(self, path: Path, offset: int, replace: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._final = path if replace else None
        self._path = path.with_name(f".tmp-{path.name}") if replace else path
        mode = "r+b" if offset and self._path.exists() else "wb"
        self._file: IO[bytes] = self._path.open(mode)
        self._file.seek(offset)
        self._file.truncate()

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def done(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._final:
            self._path.replace(self._final)

    def abandon(self) -> None:
        """The link broke off: what came stays, and the next fetch goes on behind it."""
        self._file.close()
        if self._final:
            self._path.unlink(missing_ok=True)


def _partial(part: Path) -> dict[str, Any]:
    sizes = {
        path.relative_to(part).as_posix(): path.stat().st_size
        for path in part.rglob("*")
        if path.is_file() and path.name != SUMS
    }
    return {"sums": digest_of(part / SUMS), "sizes": sizes}


def damage(part: Path) -> str:
    """The first file that does not have the checksum in SHA256SUMS; "" if all have."""
    for line in (part / SUMS).read_text(encoding="utf-8").splitlines():
        wanted, name = line[:64], safe_path(line[66:])
        if not (part / name).is_file() or digest_of(part / name) != wanted:
            return name
    return ""


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # Windows has no way to sync a folder, and does not need one
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def drain(end: IO[bytes]) -> None:
    """Read what the box says beside the data, so that it never blocks on a full pipe."""

    def read() -> None:
        with contextlib.suppress(OSError, ValueError):
            while end.read(65536):
                pass

    threading.Thread(target=read, daemon=True).start()


class _Bulk:
    """What the box sends, from the bulk mark on; its refusal instead of the mark is raised."""

    def __init__(self, box: Agent, verb: str, stream: Stream) -> None:
        self._box, self._verb, self._stream = box, verb, stream

    def frames(self) -> Iterator[bytes]:
        """The frames, then the answer; LinkLost where either breaks off."""
        noise = b""
        for line in iter(self._stream.stdout.readline, b""):
            if line == BULK:
                yield from read_frames(_From(line, self._stream.stdout))  # type: ignore[arg-type]
                noise = self._stream.stdout.read()
                break
            noise += line
        self._box.answer(self._verb, Done(self._stream.wait(), noise, b""))


class _From:
    """A stream with one line put back before it."""

    def __init__(self, line: bytes, rest: IO[bytes]) -> None:
        self._line, self._rest = line, rest

    def readline(self) -> bytes:
        line, self._line = self._line, b""
        return line or self._rest.readline()

    def read(self, count: int) -> bytes:
        return self._rest.read(count)
