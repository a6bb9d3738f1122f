"""Scans a folder on the laptop into a sorted file, and says what in it is awkward."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any, NamedTuple

from deploy.effects.turns import threads_that_take_turns
from deploy.effects.walk import Part, Survey, Walk, folded
from deploy.errors import DataError
from deploy.onbox.manifest import unquoted
from deploy.plan.transfer import ARCHIVE, Found, must_be_what_its_name_says

SHOWN = 5  # names in one message
MOST_COMPARED = 1_000_000  # names in an archive
ENOUGH = 16  # folders: from here on they are shared out, and no longer looked into to find more
LEVELS = 8  # that are looked into for them at most
PIECES = 32  # a folder's names are shared out in so many, if helpers are worth their start
FEW = 2000  # names that one process looks at sooner than a helper has started
MOST_HELPERS = 3
STOPPED_WITHIN = 1.0  # s
UNKNOWN = "-" * 64  # a checksum's place
HELPER = """
import sys
sys.path.insert(0, sys.argv[1])
from deploy.effects.walk import help_walking
help_walking()
"""


def refuse_what_cannot_go(survey: Survey, root: str) -> None:
    if survey.unreadable:
        raise DataError(f"{root}: can't be read: {some(survey.unreadable)}", "chmod, or --exclude")
    if survey.leaving:
        raise DataError(
            f"{root}: links that lead out of the set: {some(survey.leaving)}",
            "copy what they point to, or --exclude them",
        )


def warnings(survey: Survey) -> list[str]:
    said = []
    if survey.alike:
        pairs = some([f"{a!r} and {b!r}" for a, b in survey.alike])
        said.append(f"names that some systems take for one: {pairs}")
    if survey.special:
        said.append(f"left out, not files: {some(survey.special)}")
    if more := linked_bytes(survey):
        said.append(f"hard links go up as separate files, {more} bytes more")
    if survey.sparse:
        said.append(f"{survey.sparse} sparse files: their holes go up as zeros")
    return said


def linked_bytes(survey: Survey) -> int:
    """What hard links save here: all but the first name of each file."""
    sizes = {(device, inode): size for device, inode, size in survey.linked}
    return sum(size for _, _, size in survey.linked) - sum(sizes.values())


def some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


class Unit(NamedTuple):
    """Some names of a folder; `deep`: with all that is in the folders among them."""

    prefix: str
    names: list[str]
    deep: bool = True


class Lines(NamedTuple):
    """Where a unit's lines are, and what was seen on the way."""

    path: Path
    begin: int
    length: int
    seen: dict[str, Any]


class Scanning:
    """A scan that goes on in a thread of its own, while the box is reached."""

    def __init__(self, source: str, exclude: Iterable[str], target: Path) -> None:
        self._stop = threading.Event()
        self._survey: Future[Survey] = Future()
        self._asked = (source, exclude, target)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        source, exclude, target = self._asked
        try:
            with threads_that_take_turns():
                if os.path.isdir(source):
                    survey = scan(source, exclude, target, stop=self._stop)
                else:
                    survey = scan_archive(source, target)
            self._survey.set_result(survey)
        except BaseException as fault:
            self._survey.set_exception(fault)

    def survey(self) -> Survey:
        """What was seen, once it is over; what went wrong is raised."""
        return self._survey.result()

    def stop(self) -> None:
        """Nobody needs it any more; it is not waited for long."""
        self._stop.set()
        self._thread.join(STOPPED_WITHIN)


class Stopped(Exception):
    """Of a scan: its result is no longer wanted."""


def scan(
    root: str,
    exclude: Iterable[str],
    target: Path,
    helpers: int | None = None,
    stop: threading.Event | None = None,
) -> Survey:
    """Write the scan of `root` to `target`; its SHA-256 is the survey's fingerprint.

    Helpers (processes; a core each, if not said) are begun where there is enough to look at.
    The file is the same, however many there are. Stopped is raised soon after `stop` was set.
    """
    walk = Walk(root, tuple(exclude))
    top = walk.names("")
    if ".gpubox/" in top or ".gpubox" in top:
        raise DataError(f"{root} holds .gpubox, a name that we need", "rename it")
    units = shared_out(walk, top)
    survey, digest = walk.take_survey(), hashlib.sha256()
    with target.open("wb") as file, contextlib.ExitStack() as parts:
        for done in _work_off(units, walk, target, helpers, parts, stop or threading.Event()):
            survey.add(done.seen)
            for block in _blocks(done):
                digest.update(block)
                file.write(block)
    survey.fingerprint = digest.hexdigest()
    return survey


def shared_out(walk: Walk, top: list[str]) -> list[Unit]:
    """All below the root in units, in the order of a manifest."""
    units = [Unit("", top)]
    for _ in range(LEVELS):
        if not 0 < sum(len(folders(each)) for each in units) < ENOUGH:
            break
        units = [part for each in units for part in opened(walk, each)]
    return [part for each in units for part in sliced(each)]


def folders(unit: Unit) -> list[str]:
    return [name for name in unit.names if name.endswith("/")] if unit.deep else []


def opened(walk: Walk, unit: Unit) -> Iterator[Unit]:
    """The same with each folder's content as a unit of its own."""
    begin = 0
    for end, name in enumerate(unit.names, 1):
        if unit.deep and name.endswith("/"):
            yield Unit(unit.prefix, unit.names[begin:end], deep=False)
            yield Unit(unit.prefix + name, walk.names(unit.prefix + name))
            begin = end
    yield Unit(unit.prefix, unit.names[begin:], unit.deep)


def sliced(unit: Unit) -> Iterator[Unit]:
    """In pieces: small ones where nobody knows how much is in its folders."""
    most = max(1, len(unit.names) // PIECES) if folders(unit) else FEW
    for at in range(0, len(unit.names), most):
        yield unit._replace(names=unit.names[at : at + most])


def worth_helping(units: list[Unit]) -> bool:
    names = sum(len(each.names) for each in units)
    return len(units) > 1 and (names > FEW or any(folders(each) for each in units))


def _work_off(
    units: list[Unit],
    walk: Walk,
    target: Path,
    helpers: int | None,
    parts: contextlib.ExitStack,
    stop: threading.Event,
) -> list[Lines]:
    """The lines of all units; each is done by whoever is free, and here where a helper failed."""
    if helpers is None:
        helpers = min(MOST_HELPERS, cores() - 1) if worth_helping(units) else 0
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(units)):
        todo.put(index)
    done: dict[int, Lines] = {}
    threads = []
    for number in range(1, helpers + 1):
        helper = parts.enter_context(Helper(walk, target.with_name(f"{target.name}.{number}")))
        threads.append(threading.Thread(target=helper.work_off, args=(units, todo, done, stop)))
        threads[-1].start()
    path = target.with_name(target.name + ".0")
    with path.open("wb") as file:
        part = Part(walk, file)
        for index in left_in(todo, stop):
            done[index] = Lines(path, *part.take(*units[index]))
        for thread in threads:
            thread.join()
        if stop.is_set():
            raise Stopped
        for index in sorted(set(range(len(units))) - done.keys()):
            done[index] = Lines(path, *part.take(*units[index]))
    return [done[index] for index in range(len(units))]


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def left_in(todo: queue.SimpleQueue[int], stop: threading.Event) -> Iterator[int]:
    with contextlib.suppress(queue.Empty):
        while not stop.is_set():
            yield todo.get_nowait()


class Helper:
    """A process that walks units for us; what it did not answer is not done."""

    def __init__(self, walk: Walk, path: Path) -> None:
        self.path = path
        self._first = json.dumps([walk.root, walk.exclude, str(path)])
        root = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", HELPER, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def work_off(
        self,
        units: list[Unit],
        todo: queue.SimpleQueue[int],
        done: dict[int, Lines],
        stop: threading.Event,
    ) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._say(self._first)
            for index in left_in(todo, stop):
                self._say(json.dumps(units[index]))
                done[index] = Lines(self.path, *json.loads(self._answer()))

    def _say(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(line.encode("ascii") + b"\n")
        self._process.stdin.flush()

    def _answer(self) -> bytes:
        assert self._process.stdout
        return self._process.stdout.readline()

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *why: object) -> None:
        self._process.kill()
        self._process.communicate()


def _blocks(lines: Lines) -> Iterator[bytes]:
    with lines.path.open("rb") as file:
        file.seek(lines.begin)
        left = lines.length
        while left:
            block = file.read(min(left, 1 << 20))
            if not block:
                raise OSError(f"{lines.path} is shorter than it was")
            left -= len(block)
            yield block


def scan_line(found: Found) -> str:
    """A line of the memory: the checksum, or UNKNOWN, and then the line that a scan has."""
    path, kind, mode, size, mtime, inode, sha256, target = found
    tail = "\t" + quoted(target) if target else ""
    return f"{sha256 or UNKNOWN}{kind}\t{mode}\t{size}\t{mtime}\t{inode}\t{quoted(path)}{tail}\n"


def found_of(line: str, sha256: str = "") -> Found:
    """What a scan's line says."""
    kind, mode, size, mtime, inode, path, *target = line[:-1].split("\t")
    return Found(
        unquoted(path[1:-1]),
        kind,
        int(mode),
        int(size),
        int(mtime),
        int(inode),
        sha256,
        unquoted(target[0][1:-1]) if target else "",
    )


def read_scan(path: Path) -> Iterator[Found]:
    """The entries of a scan, as a stream."""
    with path.open(encoding="ascii") as file:
        for line in file:
            yield found_of(line)


class Alike:
    """Finds names that are one after case folding or Unicode normalisation, in whole paths."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self._seen: dict[str, str] = {}
        self._folder = ""

    def see(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder and folder != self._folder:
            self.see(folder)
            self._folder = folder
        if len(self._seen) < MOST_COMPARED:
            other = self._seen.setdefault(folded(path), path)
            if other != path and (other, path) not in self.pairs[-SHOWN:]:
                self.pairs.append((other, path))


def scan_archive(path: str, target: Path) -> Survey:
    """The scan of one archive: the folder it lies in is the root, the archive the only entry."""
    name = os.path.basename(path)
    status = os.stat(path)
    with open(path, "rb") as file:
        must_be_what_its_name_says(name, file.read(512))
    found = Found(name, ARCHIVE, 0o600, status.st_size, status.st_mtime_ns, status.st_ino)
    line = scan_line(found)[len(UNKNOWN) :]
    target.write_text(line, encoding="ascii")
    digest = hashlib.sha256(line.encode()).hexdigest()
    return Survey(files=1, bytes=status.st_size, fingerprint=digest)
