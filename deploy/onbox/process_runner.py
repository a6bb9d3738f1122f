"""Runs a program as a process of its own on a box that has no engine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from typing import Any

from .locks import process_start
from .memory import MemoryWatch, own_cgroup
from .output import OutputLog
from .places import Places
from .pythons import prepare_python
from .workers import tf_config

PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
FREED_EVERY = 4 << 20  # bytes


class ProcessRunner:
    """One attempt of a run as a process: its own session, its output in a file on the local disk.

    A file and no pipe, so that a supervisor's death does not end the program by SIGPIPE; the
    bytes that were copied to the run's log are given back to the file system.
    """

    KILL_MARGIN = 0.0  # seconds after the grace: nobody else kills it

    def __init__(self, places: Places, folder: str, run: dict[str, Any], log: OutputLog) -> None:
        self.places, self.folder, self.run, self.log = places, folder, run, log
        self.exit_code: int | None = None
        self.engine_lost = False
        self._child: subprocess.Popen[bytes] | None = None
        self._pid, self._started, self._copied, self._freed = 0, "", 0, 0
        self.python = ""
        self._raw = os.path.join(scratch_of(places, run), "output")
        self._memory = MemoryWatch(own_cgroup("self"))

    def prepare(self, say: Any) -> None:
        """Find or make the Python; Refusal where there is none that can run the program."""
        self.python = prepare_python(self.places, self.run, say)

    def start(self, gpus: list[str], data: str) -> dict[str, Any]:
        """Start the program; returns what `adopt` needs to find it again."""
        scratch = scratch_of(self.places, self.run)
        shutil.rmtree(scratch, ignore_errors=True)
        os.makedirs(scratch, mode=0o700)
        command = list(self.run["command"])
        if command[0] in ("python", "python3"):
            command[0] = self.python
        environment = process_environment(self.run, self.folder, gpus, data, scratch, self.python)
        environment.setdefault("CUDA_CACHE_PATH", os.path.join(cache_of(self.places), "cuda"))
        environment.setdefault("CUDA_CACHE_MAXSIZE", str(4 << 30))
        with open(self._raw, "ab") as raw:
            self._child = subprocess.Popen(
                command,
                cwd=code_of(self.folder),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=raw,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pid, self._started = self._child.pid, process_start(self._child.pid)
        return {"pid": self._pid, "started": self._started, "base": self.log.end}

    def adopt(self, handle: dict[str, Any]) -> None:
        """Go on watching a program that an earlier supervisor started."""
        self._pid, self._started = handle["pid"], handle["started"]
        self._copied = max(0, self.log.end - handle["base"])

    def poll(self, seconds: float) -> bool:
        """Copy output and wait up to `seconds`; True when the program has ended."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self._ended()
            self._copy()
            left = deadline - time.monotonic()
            if ended or left <= 0:
                return ended
            time.sleep(min(0.1, left))

    def _ended(self) -> bool:
        self._memory.look()
        if self._child is not None:
            self.exit_code = self._child.poll()
            return self.exit_code is not None
        return process_start(self._pid) != self._started

    def _copy(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self._raw, "rb+", buffering=0) as raw:
            raw.seek(self._copied)
            for data in iter(lambda: raw.read(256 << 10), b""):
                self.log.write(data)
                self._copied += len(data)
            if self._copied - self._freed >= FREED_EVERY:
                _free(raw.fileno(), self._copied)
                self._freed = self._copied

    def terminate(self, grace: float) -> None:
        """SIGTERM to the program alone: its helpers are its own to stop after it has saved."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        if not self._pid:  # nothing was started yet, and group 0 is our own
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if process_start(self._pid) == self._started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def out_of_memory(self) -> int:
        killed = self.exit_code == -signal.SIGKILL
        return self._memory.kills(killed)

    def clean(self) -> None:
        """After the end: whatever it left running in its session, and the scratch folder."""
        self.kill()
        shutil.rmtree(scratch_of(self.places, self.run), ignore_errors=True)


def _free(fd: int, upto: int) -> None:
    """Give the file's first bytes back to the disk; where it can't, the file just grows."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):
        libc.fallocate(fd, PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(upto & ~0xFFF))


def cache_of(places: Places) -> str:
    """DATA/.gpubox-cache: what a driver compiles for a new card, up to half an hour's work, outlives
    the run and the box."""
    path = os.path.join(places.data, ".gpubox-cache")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def scratch_of(places: Places, run: dict[str, Any]) -> str:
    return os.path.join(places.input, ".gpubox", "scratch", run["id"])


def code_of(folder: str) -> str:
    """Where a program starts: the user's own folder, else where the workload lies."""
    own = os.path.join(folder, "code", "user")
    return own if os.path.isdir(own) else os.path.join(folder, "code")


def read_env_file(folder: str) -> dict[str, str]:
    """The user's variables: KEY=VALUE lines as docker reads them, `#` lines left out."""
    with contextlib.suppress(FileNotFoundError):
        with open(os.path.join(folder, "env"), encoding="utf-8") as file:
            lines = [line.rstrip("\r\n") for line in file]
        return dict(e.split("=", 1) for e in lines if "=" in e and not e.startswith("#"))
    return {}


def process_environment(
    run: dict[str, Any], folder: str, gpus: list[str], data: str, scratch: str, python: str
) -> dict[str, str]:
    """The program's variables: the box's, the user's over them, ours over both."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "GPUBOX_HOME")}
    code = os.path.join(folder, "code")
    ours = {
        "GPUBOX_RUN": run["id"],
        "GPUBOX_INPUT": data,
        "GPUBOX_OUTPUT": os.path.join(folder, "output"),
        "GPUBOX_SCRATCH": scratch,
        "PYTHONPATH": os.pathsep.join([os.path.join(code, "user"), code]),
        "PYTHONUNBUFFERED": "1",
        "PATH": os.path.dirname(python) + os.pathsep + os.environ.get("PATH", os.defpath),
    }
    if run.get("worker"):
        ours["TF_CONFIG"] = tf_config(run["worker"])
    return {**inherited, **read_env_file(folder), **ours, **gpu_environment(run, gpus)}


def gpu_environment(run: dict[str, Any], gpus: list[str]) -> dict[str, str]:
    """Exactly the leased cards; on the CPU none, so that nobody else's card is touched."""
    if run["device"] != "gpu":
        return visible_gpus("-1")
    return {**visible_gpus(",".join(gpus)), "REQUIRE_GPU": str(len(gpus))}


def visible_gpus(value: str) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES, and beside it that it was the kit who set it: the workload warns of
    any other."""
    return {"CUDA_VISIBLE_DEVICES": value, "GPUBOX_CUDA_VISIBLE_DEVICES": value}
