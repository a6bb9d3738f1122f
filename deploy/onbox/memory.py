"""Counts the processes that the kernel killed for lack of memory, children included."""

from __future__ import annotations

import contextlib
import os
import re


def own_cgroup(pid: object) -> str:
    """The file that counts out-of-memory kills in the cgroup of a process; "" where none can be read.

    `self` is a process of this very system; inside a container its own group is at the top.
    """
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
        for _, controllers, path in groups:
            for candidate in _candidates(controllers, path, above=pid == "self"):
                if os.access(candidate, os.R_OK):
                    return candidate
    return ""


def container_groups(container: str) -> list[str]:
    """Where the counter of a container will be once it runs, by the engine's two ways to name its
    cgroup: one that dies at once is gone before the engine can be asked which it was."""
    names = [f"docker/{container}", f"system.slice/docker-{container}.scope"]
    groups = [("memory", name) for name in names] + [("", name) for name in names]
    return [path for each in groups for path in _candidates(*each, above=False)]


def _candidates(controllers: str, path: str, above: bool = True) -> list[str]:
    """Files to try for a cgroup; `above`: the top one too, where a container sees itself."""
    tail = path.lstrip("/")
    if controllers == "":
        roots, name = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "memory.events"
    elif "memory" in controllers.split(","):
        roots, name = ["/sys/fs/cgroup/memory"], "memory.oom_control"
    else:
        return []
    parts = (tail, "") if above else (tail,)
    return [os.path.join(root, part, name) for root in roots for part in parts]


def count(path: str) -> int:
    """oom_kill of memory.events, memory.oom_control or vmstat; 0 where it is not told."""
    with contextlib.suppress(OSError):
        with open(path) as file:
            found = re.search(r"^oom_kill (\d+)$", file.read(), re.MULTILINE)
        return int(found.group(1)) if found else 0
    return 0


class MemoryWatch:
    """Out-of-memory kills since it was made, in one cgroup and on the whole machine."""

    def __init__(self, group: str = "") -> None:
        self._group = group
        self._expected: list[str] = []
        self._group_before, self._machine_before = count(group), count("/proc/vmstat")
        self._seen = 0

    def expect(self, groups: list[str]) -> None:
        """Cgroups of which one is going to be made: its counter begins at nought."""
        self._expected = groups

    def follow(self, group: str) -> None:
        """A cgroup that did not exist yet: its counter began at nought."""
        self._group, self._group_before = group, 0

    def look(self) -> None:
        """To be called now and then: a cgroup and its counter end with its container."""
        if not self._group:
            made = [path for path in self._expected if os.path.exists(path)]
            if made:
                self.follow(made[0])
        self._seen = max(self._seen, count(self._group) - self._group_before)

    def kills(self, killed: bool) -> int:
        """How many; the machine's own counter counts only if our program was `killed`, for on
        a shared machine it may have been somebody else's."""
        self.look()
        if self._seen or not killed:
            return self._seen
        return max(0, count("/proc/vmstat") - self._machine_before)
