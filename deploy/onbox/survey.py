"""What `fab bootstrap` plans from: system, packages, engine, groups, folders, unmounted disks, sources."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import sys
from typing import Any

from .checkup import login
from .disks import disk
from .engine_facts import docker_group, try_gpu
from .facts import engine, in_container, output
from .gpu_facts import gpus
from .reach import apt_suites, reachable, sources

ASKED = ("docker.io", "docker-ce", "docker-compose-v2", "nvidia-container-toolkit", "zstd")
LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock")


def survey(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    folders = request.get("folders") or {}
    return {
        "system": {**os_ids(), "machine": os.uname().machine},
        "container": in_container(),
        "systemd": os.path.isdir("/run/systemd/system"),
        "login": {**login(), "group": grp.getgrgid(os.getgid()).gr_name},
        "engine": engine_state(),
        "gpus": gpus(),
        "packages": {name: installed(name) for name in ASKED},
        "candidate": {"nvidia-container-toolkit": candidate("nvidia-container-toolkit")},
        "apt": shutil.which("apt-get") is not None,
        "apt_uris": apt_uris(),
        "reach": reachable(),
        "hosts": [url for group in sources().values() for url in group],
        "cloud_init": (output("cloud-init", "status") or "").strip(),
        "locks": lock_holders(),
        "venv": output(sys.executable, "-c", "import ensurepip, venv") is not None,
        "folders": {key: folder(folders.get(key) or "/" + key) for key in ("data", "input")},
        "unmounted": unmounted(),
    }


def os_ids() -> dict[str, str]:
    """`id`, `version` and `name` of /etc/os-release; empty where there is none."""
    try:
        with open("/etc/os-release") as file:
            pairs = dict(line.rstrip().split("=", 1) for line in file if "=" in line)
    except OSError:
        pairs = {}
    found = {key: value.strip("\"'") for key, value in pairs.items()}
    return {
        "id": found.get("ID", ""),
        "version": found.get("VERSION_ID", ""),
        "name": found.get("PRETTY_NAME", ""),
    }


def installed(package: str) -> str:
    """The version of an installed Debian package, "" where it is not."""
    text = output("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Version}", package) or ""
    state, _, version = text.strip().partition(" ")
    return version.strip() if state.startswith("ii") else ""


def candidate(package: str) -> str:
    """The version that apt would install, "" where no source has it."""
    for line in (output("apt-cache", "policy", package) or "").splitlines():
        key, _, value = line.strip().partition(": ")
        if key == "Candidate" and value != "(none)":
            return value
    return ""


def apt_uris() -> list[str]:
    """The mirrors of the distribution itself: those with an -updates beside a suite, else those
    whose address ends with its name."""
    suites, name = set(apt_suites()), os_ids()["id"]
    whole = {uri for uri, suite in suites if (uri, suite + "-updates") in suites}
    return sorted(whole or {uri for uri, _ in suites if uri.rstrip("/").endswith("/" + name)})


def engine_state() -> dict[str, Any]:
    """facts.engine() with `group`, `running` (containers, anyone's) and `gives_gpu` (tried)."""
    found = {**engine(), "group": docker_group(), "running": 0, "gives_gpu": False}
    if found["answers"]:
        found["running"] = len((output("docker", "ps", "--quiet") or "").split())
        found["gives_gpu"] = bool(gpus()["cards"]) and bool(try_gpu()["given"])
    return found


def lock_holders() -> list[str]:
    """Who holds apt's or dpkg's locks now, from /proc/locks: readable by everyone."""
    inodes = {str(os.stat(path).st_ino) for path in LOCKS if os.path.exists(path)}
    holders = []
    with open("/proc/locks") as file:
        for line in file:
            fields = line.split()
            if len(fields) >= 6 and fields[5].rsplit(":", 1)[-1] in inodes:
                name = process_name(fields[4])
                holders += [f"{name} ({fields[4]})"] if name else []
    return sorted(set(holders))


def process_name(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def folder(path: str) -> dict[str, Any]:
    """Whether a folder is there, who owns it, whether we may write and whether it is empty."""
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        return {"path": path, "there": False, "in_way": os.path.lexists(path)}
    uid = os.stat(path).st_uid
    try:
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = str(uid)
    writable = os.access(path, os.W_OK | os.X_OK)
    try:
        empty = not set(os.listdir(path)) - {"lost+found"}
    except OSError:
        empty = False
    return {"there": True, "owner": owner, "writable": writable, "empty": empty, **disk(path)}


def unmounted() -> list[dict[str, Any]]:
    """Disks and partitions that nothing uses: named to people, never formatted by us."""
    listed = output(
        "lsblk", "--json", "--bytes", "--paths", "-o", "NAME,TYPE,FSTYPE,MOUNTPOINT,SIZE"
    )
    try:
        tree = json.loads(listed or "{}").get("blockdevices", [])
    except ValueError:
        return []
    return [each for top in tree for each in leaves(top) if is_spare(each)]


def leaves(device: dict[str, Any]) -> list[dict[str, Any]]:
    children = device.get("children") or []
    return [leaf for child in children for leaf in leaves(child)] if children else [device]


def is_spare(device: dict[str, Any]) -> bool:
    large = int(device.get("size") or 0) >= 10 << 30
    used = device.get("mountpoint") or device.get("fstype") in ("swap", "LVM2_member")
    return large and not used and device.get("type") in ("disk", "part", "lvm", "raid0")
