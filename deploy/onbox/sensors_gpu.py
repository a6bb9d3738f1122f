"""The GPU sensor: NVML in a forked child that can be killed when the driver hangs, else nvidia-smi."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import select
import shutil
import signal
import subprocess
from typing import Any, Callable, Dict

from .facts import in_container
from .idle import ABSENT, ACTIVE, IDLE, UNKNOWN, Signal
from .nvml import Nvml, NvmlError

DEADLINE = 5.0  # seconds for one answer
PAUSE = 60.0  # seconds before a driver that hung is asked again
BUSY = 0.02  # of a core: a GPU process that uses this much is at work, even with the GPU at 0 %
Row = Dict[str, Any]


class GpuUnknown(Exception):
    """Why the GPUs can't be seen."""


def on_the_bus() -> bool:
    """An NVIDIA device that this box can use; a container sees its host's bus, so only the
    device nodes count there."""
    nodes = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg")
    if any(os.path.exists(each) for each in nodes):
        return True
    if in_container():
        return False
    for folder in glob.glob("/sys/bus/pci/devices/*"):
        with contextlib.suppress(OSError):
            with open(folder + "/vendor") as vendor, open(folder + "/class") as kind:
                if vendor.read().strip() == "0x10de" and kind.read().startswith("0x03"):
                    return True
    return False


class Child:
    """NVML's child: `ask` sends a byte and waits for one line of JSON. It ends with us, since
    its pipe does."""

    def __init__(self, make: Callable[[], Any] = Nvml) -> None:
        ask, self._ask = os.pipe()
        self._answer, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                os.close(self._ask)
                os.close(self._answer)
                serve(make, ask, answer)
            os._exit(0)
        os.close(ask)
        os.close(answer)

    def ask(self) -> list[Row]:
        """GpuUnknown where it does not answer in time, or answers with an error."""
        with contextlib.suppress(OSError):
            os.write(self._ask, b"?")
        text = b""
        while not text.endswith(b"\n"):
            if not select.select([self._answer], [], [], DEADLINE)[0]:
                raise TimeoutError(f"NVML does not answer within {DEADLINE:.0f} s")
            more = os.read(self._answer, 65536)
            if not more:
                raise GpuUnknown("NVML's child died")
            text += more
        answer = json.loads(text)
        if "error" in answer:
            raise GpuUnknown(answer["error"])
        return list(answer["gpus"])

    def end(self) -> None:
        """Kill it; a child that hangs inside the driver may never be collected, so don't wait."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, os.WNOHANG)
        for fd in (self._ask, self._answer):
            with contextlib.suppress(OSError):
                os.close(fd)


def serve(make: Callable[[], Any], ask: int, answer: int) -> None:
    """The child's life: one look for every byte; a library that failed is opened again."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    library = None
    while os.read(ask, 1):
        try:
            library = library or make()
            said: dict[str, Any] = {"gpus": library.look()}
        except OSError:
            said = {"error": "no library"}
        except (NvmlError, AttributeError) as no:
            library, said = None, {"error": str(no)}
        os.write(answer, json.dumps(said).encode() + b"\n")


class Gpu:
    """Use and processes of all GPUs. Memory that is held but not used keeps no box awake; who
    holds it is named."""

    def __init__(self, limit: float, child: Callable[[], Child] = Child) -> None:
        self.limit = limit
        self._make_child = child
        self._child: Child | None = None
        self._not_before = 0.0
        self._why = ""
        self._ticks: dict[int, tuple[int, float]] = {}

    def read(self, at: float) -> Signal:
        if not on_the_bus():
            return Signal(ABSENT, "no NVIDIA GPU")
        try:
            rows = self._look(at)
        except GpuUnknown as no:
            return Signal(UNKNOWN, str(no))
        return self.judge(rows, at)

    def _look(self, at: float) -> list[Row]:
        if at < self._not_before:
            raise GpuUnknown(self._why)
        self._child = self._child or self._make_child()
        try:
            return self._child.ask()
        except TimeoutError as no:
            self.close()
            self._not_before, self._why = at + PAUSE, str(no)
            raise GpuUnknown(str(no)) from no
        except GpuUnknown as no:
            if str(no) != "no library":
                self.close()
                raise
            return nvidia_smi()

    def judge(self, rows: list[Row], at: float) -> Signal:
        uses = [row["use"] for row in rows if row["use"] is not None]
        pids = sorted({pid for row in rows for pid in row["pids"]})
        working = [pid for pid in pids if self._at_work(pid, at)]
        self._ticks = {pid: seen for pid, seen in self._ticks.items() if pid in pids}
        use = f"{max(uses)} %" if uses else "use not told"
        if uses and max(uses) >= self.limit:
            return Signal(ACTIVE, use)
        if working:
            return Signal(ACTIVE, f"{use}, but {named(working)} computes")
        if pids and len(uses) < len(rows) and any(name_of(pid) is None for pid in pids):
            return Signal(UNKNOWN, f"{use}, and {named(pids)} can't be seen")
        if not rows:
            return Signal(UNKNOWN, "no GPU listed")
        held = f"; memory held by {named(pids)}" if pids else unowned(rows)
        return Signal(IDLE, use + held)

    def _at_work(self, pid: int, at: float) -> bool:
        """True where a GPU process has used BUSY of a core since the last look."""
        now = cpu_seconds(pid)
        last = self._ticks.get(pid)
        if now is None:
            return False
        self._ticks[pid] = (now, at)
        return last is not None and at > last[1] and (now - last[0]) / 100 >= BUSY * (at - last[1])

    def close(self) -> None:
        if self._child:
            self._child.end()
        self._child = None


def unowned(rows: list[Row]) -> str:
    memory = sum(row["memory"] for row in rows)
    return f"; {memory >> 20} MiB held by no process that can be seen" if memory >> 30 else ""


def cpu_seconds(pid: int) -> int | None:
    """Hundredths of a second of processor time that a process has used; None where it is not
    among ours (dead, or in another container)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return (int(fields[11]) + int(fields[12])) * 100 // os.sysconf("SC_CLK_TCK")


def name_of(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return None


def named(pids: list[int]) -> str:
    """`pid 812 (python3)`, and `pid 99 (not here)` for a dead or foreign one."""
    shown = [f"pid {pid} ({name_of(pid) or 'not here'})" for pid in pids[:4]]
    return ", ".join(shown) + (f" and {len(pids) - 4} more" if len(pids) > 4 else "")


def nvidia_smi() -> list[Row]:
    """The same rows from the program; whatever is not plain numbers is unknown."""
    if shutil.which("nvidia-smi") is None:
        raise GpuUnknown("neither NVML's library nor nvidia-smi is there")
    ask = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            ask,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DEADLINE,
        )
    except subprocess.TimeoutExpired:
        raise GpuUnknown(f"nvidia-smi does not answer within {DEADLINE:.0f} s") from None
    text = done.stdout.decode(errors="replace").strip()
    first = text.splitlines()[0][:80] if text else "nothing printed"
    if done.returncode != 0 or not text:
        raise GpuUnknown(f"nvidia-smi ended with {done.returncode}: {first}")
    try:
        numbers = [[int(each) for each in line.split(",")] for line in text.splitlines()]
        return [{"use": use, "memory": memory << 20, "pids": []} for use, memory in numbers]
    except ValueError:
        raise GpuUnknown(f"nvidia-smi prints {first!r}") from None
