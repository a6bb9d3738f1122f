"""Sends what a run has made: published checkpoints whole, other files from where they were left.

After the bulk mark every frame begins with `J` (one JSON object) or `D` (bytes of the file that
the last `file` object named):

    {"kind": "begin", id, state, goes_on, latest, best}
    {"kind": "step", step, sums, files: [{name, size}]}      a checkpoint begins
    {"kind": "file", path, offset, size}                     then its bytes from `offset` on
    {"kind": "end", path, sha256}                            of the whole file, or "" if not known
    {"kind": "step-end", step}  {"kind": "dropped", step, why}  {"kind": "kept", step | path, why}
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import tempfile
import time
from typing import Any, Iterator

from .activity import active
from .checkpoints import SUMS, parse_sums, pointer
from .checkpoints import digest as file_digest
from .outlook import will_go_on
from .places import find_places
from .publish import write_json
from .runs import pick_run, read_state, run_folder
from .steps import checkpoint_steps

CHUNK = 1 << 20
SETTLE = 2.0  # seconds between two looks at a folder that brings no checksums
TRIES = 50  # times that `last` looks again when the run rotated the newest away meanwhile


def send(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb (bulk): `which` is last, best, all, none or a list of folder names; `have` and
    `partial` say what is home already, `files` whether the other files are wanted too."""
    places = find_places(request)
    run_id = pick_run(places, request.get("run", ""))
    folder = run_folder(places, run_id)
    checkpoints = os.path.join(folder, "output", "checkpoints")
    wire.start_bulk()
    say = Sender(wire)
    hints = {name: pointer(checkpoints, name) for name in ("LATEST", "best")}
    with active("fetch"):
        state = read_state(folder)
        say.tell("begin", id=run_id, state=state, goes_on=will_go_on(state), **hints)
        _send_steps(say, checkpoints, request)
        if request.get("files") is not None:
            for path in other_files(folder):
                say.send_other(folder, path, request["files"].get(path))
    wire.frame(b"")
    return {"id": run_id, "state": read_state(folder)}


def _send_steps(say: Sender, checkpoints: str, request: dict[str, Any]) -> None:
    done: set[str] = set()
    for _ in range(TRIES):
        wanted = wanted_steps(checkpoints, request.get("which", "last"))
        left = [step for step in wanted if step not in done]
        if not left:
            return
        sent = [say.send_step(checkpoints, step, request) for step in left]
        done.update(left)
        if all(sent) or request.get("which") == "all":
            return


def wanted_steps(checkpoints: str, which: Any) -> list[str]:
    """Folder names, oldest first, as they are there at this moment."""
    steps = [
        f"step_{step:08d}"
        for step in checkpoint_steps(os.path.dirname(os.path.dirname(checkpoints)))
    ]
    if which == "last":
        return steps[-1:]
    if which == "best":
        best = pointer(checkpoints, "best")
        return [best] if best in steps else []
    if which == "all":
        return steps
    return [step for step in steps if step in which] if isinstance(which, list) else []


class Sender:
    """Writes objects and files into the frames of one answer."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire

    def tell(self, kind: str, **fields: Any) -> None:
        self._wire.frame(b"J" + json.dumps({"kind": kind, **fields}).encode())

    def send_step(self, checkpoints: str, step: str, request: dict[str, Any]) -> bool:
        """One checkpoint, from files that were all open before the first byte went; False where
        it was rotated away before that."""
        try:
            with _opened(os.path.join(checkpoints, step)) as (digest, files):
                if request.get("have", {}).get(step) == digest:
                    self.tell("kept", step=step, why="home already")
                    return True
                partial = request.get("partial", {}).get(step, {})
                sizes = partial.get("sizes", {}) if partial.get("sums") == digest else {}
                listed = [{"name": n, "size": os.fstat(f).st_size} for n, f in files.items()]
                self.tell("step", step=step, sums=digest, files=listed)
                for name, fd in files.items():
                    self._send(f"{step}/{name}", fd, int(sizes.get(name, 0)))
                self.tell("step-end", step=step)
                return True
        except (OSError, ValueError) as no:
            gone = isinstance(no, FileNotFoundError)
            self.tell("dropped", step=step, why="rotated away" if gone else str(no))
            return False

    def send_other(self, folder: str, path: str, have: dict[str, Any] | None) -> None:
        """A file that grows or is replaced: its new end where home has its beginning, else all."""
        try:
            fd = os.open(os.path.join(folder, path), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return
        try:
            size = os.fstat(fd).st_size
            offset = int(have["size"]) if have and int(have["size"]) <= size else 0
            if have and offset and _digest(fd, offset) != have["sha256"]:
                offset = 0
            if have and offset == size and offset == int(have["size"]):
                self.tell("kept", path=path, why="same content")
            else:
                self._send(path, fd, offset, size)
        finally:
            os.close(fd)

    def _send(self, path: str, fd: int, offset: int, size: int | None = None) -> None:
        size = os.fstat(fd).st_size if size is None else size
        offset = offset if offset <= size else 0
        self.tell("file", path=path, offset=offset, size=size)
        while offset < size:
            data = os.pread(fd, min(CHUNK, size - offset), offset)
            if not data:
                break
            self._wire.frame(b"D" + data)
            offset += len(data)
        self.tell("end", path=path)


def _digest(fd: int, length: int) -> str:
    total, offset = hashlib.sha256(), 0
    while offset < length:
        data = os.pread(fd, min(CHUNK, length - offset), offset)
        if not data:
            break
        total.update(data)
        offset += len(data)
    return total.hexdigest()


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[tuple[str, dict[str, int]]]:
    """(SHA-256 of SHA256SUMS, name → open file) of a whole checkpoint: once they are open, its
    removal can't tear it. FileNotFoundError where it is being removed.

    A foreign one without checksums gets them here, once two looks have found it unchanged.
    """
    files: dict[str, int] = {}
    try:
        files[SUMS] = _sums_of(folder)
        sums = os.pread(files[SUMS], 16 << 20, 0)
        for name in parse_sums(sums.decode("utf-8")):
            files[name] = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW)
        yield hashlib.sha256(sums).hexdigest(), files
    finally:
        for fd in files.values():
            os.close(fd)


def _sums_of(folder: str) -> int:
    """SHA256SUMS as an open file: the program's own, else one of ours that is nowhere on disk."""
    try:
        return os.open(os.path.join(folder, SUMS), os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        before = looked_at(folder)
    if glob.glob(os.path.join(glob.escape(os.path.dirname(folder)), "step_*", SUMS)):
        raise ValueError(f"has no {SUMS}, though others have")  # half removed, or damaged
    time.sleep(SETTLE)
    if looked_at(folder) != before or not before:
        raise ValueError("is still being written")
    lines = [f"{file_digest(os.path.join(folder, name))}  {name}\n" for name in sorted(before)]
    if looked_at(folder) != before:
        raise ValueError("is still being written")
    with tempfile.TemporaryFile() as made:
        made.write("".join(lines).encode("utf-8", "surrogateescape"))
        made.flush()
        return os.dup(made.fileno())


def looked_at(folder: str) -> dict[str, tuple[int, int]]:
    """Name → (size, time of the last change in ns) of every file below `folder`; FileNotFoundError
    where it is gone."""
    os.stat(folder)
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            about = os.lstat(full)
            found[os.path.relpath(full, folder)] = (about.st_size, about.st_mtime_ns)
    return found


def other_files(folder: str) -> list[str]:
    """All that a run has beside its checkpoints, its program and its secrets, sorted."""
    found = [
        name for name in ("run.json", "state.json") if os.path.isfile(os.path.join(folder, name))
    ]
    for top in ("logs", "output"):
        for path, folders, names in os.walk(os.path.join(folder, top)):
            folders[:] = [
                f for f in folders if f != "checkpoints" or os.path.basename(path) != "output"
            ]
            for name in names:
                full = os.path.join(path, name)
                if (
                    os.path.isfile(full)
                    and not os.path.islink(full)
                    and not name.startswith(".tmp")
                    and name != "reserve"
                    and not name.startswith(".trainer")
                ):
                    found.append(os.path.relpath(full, folder))
    return sorted(found)


def home(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: a laptop says which step of a run it has whole, for `fab down` and the keeper."""
    places = find_places(request)
    folder = run_folder(places, pick_run(places, request["run"]))
    told = {"schema": 1, "step": int(request["step"]), "at": time.time(), "where": request["where"]}
    write_json(os.path.join(folder, "home.json"), told)
    return told
