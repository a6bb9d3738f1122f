"""Sensors of load: processor, disk and network, each as a mean over the time since the last look."""

from __future__ import annotations

import os
from typing import Callable

from .facts import in_container
from .idle import ABSENT, ACTIVE, IDLE, UNKNOWN, Signal

MIB = 1024 * 1024
Counter = Callable[[], "float | None"]
OWN_INTERFACE = ("lo", "docker", "veth", "br-", "virbr", "cni", "tap")


class Rate:
    """A counter that only grows, read as what it grew a second."""

    def __init__(self, counter: Counter, limit: float, unit: str) -> None:
        self.counter, self.limit, self.unit = counter, limit, unit
        self._last: tuple[float, float] | None = None

    def read(self, at: float) -> Signal:
        count = self.counter()
        if count is None:
            return Signal(ABSENT, "this box has no counter of its own")
        last, self._last = self._last, (at, count)
        if last is None or at <= last[0] or count < last[1]:
            return Signal(UNKNOWN, "first look")
        rate = (count - last[1]) / (at - last[0])
        state = ACTIVE if rate >= self.limit else IDLE
        return Signal(state, f"{rate:.{0 if self.unit == '%' else 1}f} {self.unit}")


def processor(limit: float) -> Rate:
    """Use of all cores that this box may use, in per cent."""
    return Rate(cpu_percent_seconds, limit, "%")


def network(limit: float) -> Rate:
    """Bytes in and out of the box, in MiB/s."""
    return Rate(network_mib, limit, "MiB/s")


def disk(limit: float) -> Rate:
    """Blocks in and out of all disks, in MiB/s; a container sees its host's: absent there."""
    return Rate(disk_mib, limit, "MiB/s")


def cpu_percent_seconds() -> float | None:
    """Per cent times seconds, so that its rate is a percentage of all cores."""
    if not in_container():
        with open("/proc/stat") as file:
            fields = [int(each) for each in file.readline().split()[1:9]]
        user, nice, system, _, _, irq, softirq, _ = fields
        busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return 100.0 * busy / (os.cpu_count() or 1)
    seconds = cgroup_cpu_seconds()
    return None if seconds is None else 100.0 * seconds / cores()


def cgroup_cpu_seconds(root: str = "/sys/fs/cgroup") -> float | None:
    """What this container has used: cgroup v2's cpu.stat, or v1's cpuacct."""
    try:
        with open(root + "/cpu.stat") as file:
            stat = dict(line.split()[:2] for line in file)
        if "usage_usec" in stat:
            return int(stat["usage_usec"]) / 1e6
    except OSError:
        pass
    for folder in ("cpuacct", "cpu,cpuacct"):
        try:
            with open(f"{root}/{folder}/cpuacct.usage") as file:
                return int(file.read()) / 1e9
        except OSError:
            continue
    return None


def cores(root: str = "/sys/fs/cgroup") -> float:
    """Cores that this container may use: its quota, else those it may run on."""
    try:
        with open(root + "/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            return max(0.01, int(quota) / int(period))
    except (OSError, ValueError):
        pass
    return float(len(os.sched_getaffinity(0)))


def network_mib() -> float | None:
    total = 0
    with open("/proc/net/dev") as file:
        for line in file.readlines()[2:]:
            name, _, numbers = line.partition(":")
            if not name.strip().startswith(OWN_INTERFACE):
                fields = numbers.split()
                total += int(fields[0]) + int(fields[8])
    return total / MIB


def disk_mib() -> float | None:
    if in_container():
        return None
    with open("/proc/vmstat") as file:
        kib = [int(line.split()[1]) for line in file if line.startswith(("pgpgin ", "pgpgout "))]
    return sum(kib) / 1024
