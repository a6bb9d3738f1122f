"""Staging from a network disk's likeness: ours against cp -r, rclone, a thread pool, and a plain untar.

TMPDIR=/dev/shm puts the fast disk (ext4) into memory: a machine's own disk then has no say in it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.grounds import ROOT, Ground, ground, make_set, python, slow_disk
from bench.uploads import ours

Note = Callable[..., None]
SMALL = 20_000  # files of 1 to 8 KiB, in folders of 500
# cp -r takes 12 minutes at 10 ms and is as slow with the last file as with the first: it is timed
# with every n-th folder, and the time taken n-fold.
EVERY = {10_000: 20, 1_000: 5}
REPEAT = 3  # the best counts, on either side
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
MANIFEST = """
import sys
sys.path.insert(0, sys.argv[1])
from deploy.onbox.manifest import *
count = int(sys.argv[3])
with open(sys.argv[2] + "/manifest", "w") as file:
    file.write(header_line(Header(count, count // 100, 0, count * 100, 1.0)))
    for i in range(count):
        if i % 100 == 0:
            file.write(line_of(Entry(f"class{i // 100:05}", FOLDER, 0o755)))
        path = f"class{i // 100:05}/image_{i:07}.png"
        file.write(line_of(Entry(path, FILE, 0o644, 100, i, f"{i:064x}")))
"""
SORT = """
import os, sys
sys.path.insert(0, sys.argv[1])
import deploy.onbox.stage as stage
from deploy.onbox.places import Places
from deploy.onbox.shelf import Shelf
from deploy.onbox.staged import find_staged
folder = sys.argv[2]
shelf = Shelf("set", folder, folder)
shelf.__class__.version = lambda self, version: folder + "/manifest"
places = Places(folder, folder, folder + "/runs", folder, [])
stage.copy_plain = lambda files, root, done, link: [done(each) for each in files]
os.makedirs(folder + "/.gpubox")
stage.Staging(places, shelf, find_staged(places, "set", "v"), lambda **told: None).run()
"""


def timed(*command: str, **env: str) -> float:
    began = time.monotonic()
    environment = {**os.environ, **env}
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment)
    return time.monotonic() - began


def staged(at: Ground, disk: Path, name: str) -> float:
    """Our program as the box has it: compiled when it was installed, started without `site`."""
    env = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(at.folder / "compiled")}
    words = ["-S", "-c", STAGE, str(ROOT), str(disk), str(at.fresh("input")), name]
    return timed(python(), *words, **env)


def others(at: Ground, source: Path) -> dict[str, float]:
    """Seconds of each tool that copies many files at once."""
    target = {name: str(at.fresh(name)) for name in ("rclone", "pool")}
    return {
        "rclone": timed(
            "rclone", "copy", "--transfers", "64", "--checkers", "64", str(source), target["rclone"]
        ),
        "pool": timed(python(), "-c", POOL, str(source), target["pool"]),
    }


def small(micro: int, quick: bool, note: Note) -> None:
    """Packed by our upload, and as a plain folder of someone else's."""
    name = f"transfer.staging.{micro // 1000}ms"
    with ground(slow=False) as at:
        many = make_set(at.folder / "many", SMALL, 1024, 8192)
        data, plain, tar = at.fresh("data"), at.fresh("plain"), at.folder / "one.tar"
        ours(at, many, data)
        many.rename(plain / "set")
        subprocess.run(["tar", "-C", str(plain / "set"), "-cf", str(tar), "."], check=True)
        packed, untar = [], []
        for _ in range(REPEAT):
            untar.append(timed("tar", "-C", str(at.fresh("untar")), "-xf", str(tar)))
            with slow_disk(at.folder, data, micro) as disk:
                packed.append(staged(at, disk, "set"))
        note(f"{name}.local_untar_seconds", min(untar), "s")
        note(f"{name}.packed.seconds", min(packed), "s")
        note(f"{name}.packed.ratio_to_untar", min(packed) / min(untar))
        against(at, name, plain, micro, min(packed), note)


def against(at: Ground, name: str, plain: Path, micro: int, packed: float, note: Note) -> None:
    with slow_disk(at.folder, plain, micro) as disk:
        foreign = staged(at, disk, "set")
    note(f"{name}.foreign.seconds", foreign, "s")
    with slow_disk(at.folder, plain, micro) as disk:
        cp = EVERY[micro] * timed(
            "cp",
            "-r",
            *map(str, sorted((disk / "set").iterdir())[:: EVERY[micro]]),
            str(at.fresh("cp")),
        )
    note(f"{name}.cp_seconds", cp, f"s (every {EVERY[micro]}th folder, scaled)")
    with slow_disk(at.folder, plain, micro) as disk:
        best = others(at, disk / "set")
    for tool, seconds in best.items():
        note(f"{name}.{tool}_seconds", seconds, "s")
    note(f"{name}.packed.times_cp", cp / packed, "×")
    note(f"{name}.packed.times_best", min(best.values()) / packed, "×")
    note(f"{name}.foreign.times_cp", cp / foreign, "×")


def large(micro: int, quick: bool, note: Note) -> None:
    """One file of 1 GiB that was uploaded: held to its checksum, which cp does not do."""
    name = f"transfer.staging.{micro // 1000}ms.large"
    with ground(slow=False) as at:
        data = at.fresh("data")
        file = make_set(at.folder / "large", 1, 1 << 30, 1 << 30)
        ours(at, file, data)
        mine = []
        for _ in range(REPEAT):
            with slow_disk(at.folder, data, micro) as disk:
                mine.append(staged(at, disk, "set"))
        with slow_disk(at.folder, data, micro) as disk:
            cp = timed("cp", "-r", str(disk / "set" / "class000"), str(at.fresh("cp")))
        note(f"{name}.seconds", min(mine), "s")
        note(f"{name}.cp_seconds", cp, "s")
        note(f"{name}.times_cp", cp / min(mine), "×")


def million(quick: bool, note: Note) -> None:
    """Memory for a manifest of a million plain files, sorted into what is to be copied."""
    count = 100_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python(), "-c", MANIFEST, str(ROOT), folder, str(count)], check=True)
        seconds = timed(python(), "-c", SORT, str(ROOT), folder)
    note("transfer.staging.million.sort_seconds", seconds, "s")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    note("transfer.staging.million.peak_mib", peak, "MiB")


SCENARIOS: dict[str, Callable[[bool, Note], None]] = {
    "staging-small-10ms": partial(small, 10_000),
    "staging-small-1ms": partial(small, 1_000),
    "staging-large-10ms": partial(large, 10_000),
    "staging-million": million,
}
