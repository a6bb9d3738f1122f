"""Asks NVIDIA's management library through ctypes; only ever called in a child that may hang."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from typing import Any

NOT_SUPPORTED, MORE_ROOM = 3, 7
UTILISATION = 1  # nvmlSamplingType_t: NVML_GPU_UTILIZATION_SAMPLES
NO_VALUE = 0xFFFFFFFFFFFFFFFF


class NvmlError(Exception):
    """The library's own text."""


class Rates(ctypes.Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Process(ctypes.Structure):  # nvmlProcessInfo_t of the _v2 and _v3 calls
    _fields_ = [
        ("pid", c_uint),
        ("memory", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    ]


class Use(ctypes.Structure):  # nvmlSample_t; the value is a union of 8 bytes
    _fields_ = [("time", c_ulonglong), ("value", c_uint), ("padding", c_uint)]


class Nvml:
    """One initialised library; `look` may raise NvmlError, and may hang with the driver."""

    def __init__(self, library: str = "libnvidia-ml.so.1") -> None:
        self._library = ctypes.CDLL(library)  # OSError without one
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self._call("nvmlInit_v2")
        self._seen: dict[int, int] = {}  # GPU → time stamp of the newest sample that was read

    def _call(self, name: str, *arguments: Any, allow: tuple[int, ...] = ()) -> int:
        code = int(getattr(self._library, name)(*arguments))
        if code != 0 and code not in allow:
            text = self._library.nvmlErrorString(code) or b""
            raise NvmlError(f"{name}: {text.decode(errors='replace')} ({code})")
        return code

    def look(self) -> list[dict[str, Any]]:
        """One row a GPU: {use: per cent or None, memory: bytes in use, pids: [...]}."""
        count = c_uint()
        self._call("nvmlDeviceGetCount_v2", byref(count))
        return [self._gpu(index) for index in range(count.value)]

    def _gpu(self, index: int) -> dict[str, Any]:
        handle = c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
        memory = Memory()
        self._call("nvmlDeviceGetMemoryInfo", handle, byref(memory))
        return {"use": self._use(index, handle), "memory": memory.used, "pids": self._pids(handle)}

    def _use(self, index: int, handle: c_void_p) -> int | None:
        """The highest use since the last look, so that a short burst between two polls is seen;
        None where the card can't tell (MIG)."""
        rates = Rates()
        code = self._call(
            "nvmlDeviceGetUtilizationRates", handle, byref(rates), allow=(NOT_SUPPORTED,)
        )
        if code == NOT_SUPPORTED:
            return None
        return max([int(rates.gpu), *self._burst(index, handle)])

    def _burst(self, index: int, handle: c_void_p) -> list[int]:
        """The driver's own samples since the last look; none where it keeps none."""
        if not hasattr(self._library, "nvmlDeviceGetSamples"):
            return []
        kind, count, since = c_uint(), c_uint(), c_ulonglong(self._seen.get(index, 0))
        ask = (handle, c_uint(UTILISATION), since, byref(kind), byref(count))
        if self._library.nvmlDeviceGetSamples(*ask, None) != 0 or not count.value:
            return []
        samples = (Use * count.value)()
        if self._library.nvmlDeviceGetSamples(*ask, samples) != 0:
            return []
        found = [each for each in samples[: count.value] if each.time > since.value]
        first_look = index not in self._seen
        self._seen[index] = max([since.value, *(each.time for each in found)])
        return [] if first_look else [each.value for each in found]

    def _pids(self, handle: c_void_p) -> list[int]:
        for name in (
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetComputeRunningProcesses_v2",
        ):
            if hasattr(self._library, name):
                count = c_uint(256)
                rows = (Process * 256)()
                code = self._call(
                    name, handle, byref(count), rows, allow=(NOT_SUPPORTED, MORE_ROOM)
                )
                return [] if code == NOT_SUPPORTED else [row.pid for row in rows[: count.value]]
        return []
