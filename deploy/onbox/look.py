"""Looks at the box through all sensors; one that fails is unknown, and says why."""

from __future__ import annotations

import time
from typing import Any, Protocol

from .idle import UNKNOWN, Sample, Signal
from .places import Places
from .sensors_gpu import Gpu
from .sensors_load import disk, network, processor
from .sensors_people import Editors, Notebooks, Terminals
from .sensors_work import Hold, Leases, Runs


class Sensor(Protocol):
    def read(self, at: float) -> Signal: ...


class Look:
    """All sensors of a box; on a shared one only those of our own work, as others' is not ours
    to judge."""

    def __init__(self, places: Places, limits: dict[str, Any], shared: bool, poll: float) -> None:
        self.runs = Runs(places, float(limits["stalled_after"]))
        self.gpu = Gpu(float(limits["gpu_below"]))
        self.sensors: dict[str, Sensor] = {"runs": self.runs, "work": Leases(), "hold": Hold()}
        if not shared:
            self.sensors.update(
                {
                    "gpu": self.gpu,
                    "cpu": processor(float(limits["cpu_below"])),
                    "disk": disk(float(limits["disk_below"])),
                    "network": network(float(limits["net_below"])),
                    "terminals": Terminals(2 * poll),
                    "editors": Editors(),
                    "notebooks": Notebooks(),
                }
            )

    def take(self, epoch: str) -> Sample:
        at = time.monotonic()
        signals = {name: self._read(sensor, at) for name, sensor in self.sensors.items()}
        return Sample(time.monotonic(), time.time(), epoch, signals)

    def _read(self, sensor: Sensor, at: float) -> Signal:
        try:
            return sensor.read(at)
        except Exception as fault:
            return Signal(UNKNOWN, f"{type(fault).__name__}: {fault}")

    def close(self) -> None:
        self.gpu.close()
