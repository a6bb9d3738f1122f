"""Staging from a network disk's likeness: ours against cp, rsync, rclone and a thread pool."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.grounds import ROOT, Ground, ground, make_set, python, slow_disk
from bench.uploads import ours

Note = Callable[..., None]
STAGE = """
import sys
sys.path.insert(0, sys.argv[1])
from deploy.onbox.places import Places
from deploy.onbox.stage import stage_set
places = Places(sys.argv[2], sys.argv[3], sys.argv[3] + "/runs", sys.argv[3] + "/home", [])
found = stage_set(places, sys.argv[4], "current", lambda **told: None)
assert not found["already"]
"""
POOL = """
import os, shutil, sys
from concurrent.futures import ThreadPoolExecutor
source, target = sys.argv[1:]
files = []
for where, folders, names in os.walk(source):
    os.makedirs(os.path.join(target, os.path.relpath(where, source)), exist_ok=True)
    files += [os.path.relpath(os.path.join(where, name), source) for name in names]
with ThreadPoolExecutor(32) as pool:
    list(pool.map(lambda f: shutil.copy(os.path.join(source, f), os.path.join(target, f)), files))
"""


def timed(*command: str) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, cwd=ROOT)
    return time.monotonic() - began


def staged(at: Ground, disk: Path, name: str) -> float:
    return timed(python(), "-c", STAGE, str(ROOT), str(disk), str(at.fresh("input")), name)


def others(at: Ground, source: Path) -> dict[str, float]:
    """Seconds of each tool that copies many files at once."""
    target = {name: str(at.fresh(name)) for name in ("rclone", "pool")}
    return {
        "rclone": timed(
            "rclone", "copy", "--transfers", "64", "--checkers", "64", str(source), target["rclone"]
        ),
        "pool": timed(python(), "-c", POOL, str(source), target["pool"]),
    }


def stagings(quick: bool, note: Note) -> None:
    with ground(slow=False) as at:
        many = make_set(at.folder / "many", 20_000, 1024, 8192)
        data = at.fresh("data")
        ours(at, many, data)
        plain = at.fresh("plain")
        subprocess.run(["cp", "-r", str(many), str(plain / "set")], check=True)
        large = make_set(plain / "large", 1, 1 << 30, 1 << 30)
        tar = at.folder / "one.tar"
        subprocess.run(["tar", "-C", str(many), "-cf", str(tar), "."], check=True)
        untar = min(timed("tar", "-C", str(at.fresh("untar")), "-xf", str(tar)) for _ in range(3))
        note("transfer.staging.local_untar_seconds", untar, "s")
        for micro in (10_000, 1_000):
            at_latency(at, micro, data, plain, untar, quick, note)
        large_file(at, plain, large, note)


def at_latency(
    at: Ground, micro: int, data: Path, plain: Path, untar: float, quick: bool, note: Note
) -> None:
    name = f"transfer.staging.{micro // 1000}ms"
    base = at.folder
    mine = []
    for _ in range(3):
        with slow_disk(base, data, micro) as disk:
            mine.append(staged(at, disk, "set"))
    note(f"{name}.packed.seconds", min(mine), "s")
    note(f"{name}.packed.ratio_to_untar", min(mine) / untar)
    with slow_disk(base, plain, micro) as disk:
        foreign = staged(at, disk, "set")
    note(f"{name}.foreign.seconds", foreign, "s")
    with slow_disk(base, plain, micro) as disk:
        cp = cp_seconds(at, disk / "set", quick)
    note(f"{name}.cp_seconds", cp, "s")
    with slow_disk(base, plain, micro) as disk:
        best = others(at, disk / "set")
    for tool, seconds in best.items():
        note(f"{name}.{tool}_seconds", seconds, "s")
    note(f"{name}.packed.times_cp", cp / min(mine), "×")
    note(f"{name}.packed.times_best", min(best.values()) / min(mine), "×")
    note(f"{name}.foreign.times_cp", cp / foreign, "×")


def cp_seconds(at: Ground, source: Path, quick: bool) -> float:
    """`cp -r` of all; with --quick of one folder in forty, times forty."""
    folders = sorted(os.listdir(source))
    chosen = folders[:1] if quick else folders
    target = at.fresh("cp")
    part = timed("cp", "-r", *[str(source / each) for each in chosen], str(target))
    return part * len(folders) / len(chosen)


def large_file(at: Ground, plain: Path, large: Path, note: Note) -> None:
    with slow_disk(at.folder, plain, 10_000) as disk:
        mine = staged(at, disk, "large")
    with slow_disk(at.folder, plain, 10_000) as disk:
        cp = timed("cp", "-r", str(disk / "large"), str(at.fresh("cp")))
    note("transfer.staging.10ms.large.seconds", mine, "s")
    note("transfer.staging.10ms.large.times_cp", cp / mine, "×")
