"""Uploads over loopback and over the slow line: ours, rsync, tar, scp, Fabric's put."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench import mnist
from bench.grounds import ROOT, Ground, ground, make_set, python

Note = Callable[..., None]
FEW = 100  # files for the tools that take a third of a second for each on the slow line
PUT = """
import sys, os
from fabric import Connection, Config
from fabric.config import SSHConfig
box = Connection("box", config=Config(ssh_config=SSHConfig.from_path(sys.argv[1])))
for where, folders, files in os.walk(sys.argv[2]):
    target = sys.argv[3] + "/" + os.path.relpath(where, sys.argv[2])
    box.run("mkdir -p " + target, hide=True)
    for name in files:
        box.put(where + "/" + name, target + "/" + name)
"""


def ours(at: Ground, source: Path, data: Path | None = None, more: str = "") -> float:
    """`fab upload`, everything included: start of Python, connection, verification, sync.

    `more` are lines for the box's table of the config.
    """
    data = data or at.fresh("data")
    env = at.config(data, data)
    with open(env["GPUBOX_CONFIG"], "a") as toml:
        toml.write(more)
    return at.run(fab(), "upload", str(source), "--name", "set", **env)


def fab() -> str:
    return str(Path(python()).parent / "fab")


def rsync(at: Ground, source: Path) -> float:
    ssh = shlex.join(["ssh", *at.ssh_options()])
    return at.run("rsync", "-a", "-e", ssh, f"{source}/", f"box:{at.fresh('rsync')}/")


def tar(at: Ground, source: Path) -> float:
    ssh, target = shlex.join(["ssh", *at.ssh_options(), "box"]), at.fresh("tar")
    script = f"tar -C {source} -cf - . | {ssh} tar -C {target} -xf -"
    return at.run("sh", "-c", script)


def scp(at: Ground, source: Path) -> float:
    return at.run("scp", "-q", "-r", *at.ssh_options(), str(source), f"box:{at.fresh('scp')}/")


def put(at: Ground, source: Path) -> float:
    config = str(at.folder / "ssh_config")
    return at.run(python(), "-c", PUT, config, str(source), str(at.fresh("put")))


def loopback_small(quick: bool, note: Note) -> None:
    """Many small files against `tar | ssh tar`, several times in turn."""
    small = 20_000 if quick else 100_000
    with ground(slow=False) as at:
        many = make_set(at.folder / "many", small, 1024, 8192)
        warm(many)
        mine, theirs, spent = [], [], []
        for _ in range(2 if quick else 3):
            theirs.append(tar(at, many))
            of_tar = at.cpu
            mine.append(ours(at, many))
            spent.append(at.cpu / of_tar)
        note("transfer.loopback.small.seconds", min(mine), "s")
        note("transfer.loopback.small.tar_seconds", min(theirs), "s")
        note("transfer.loopback.small.ratio_to_tar", min(mine) / min(theirs))
        note("transfer.loopback.small.cpu_ratio_to_tar", min(spent))
        note("transfer.loopback.small.rsync_seconds", rsync(at, many), "s")
        few = make_set(at.folder / "few", 500, 1024, 8192)
        rate = small / min(mine)
        note("transfer.loopback.small.times_put", rate / (500 / put(at, few)), "×")
        note("transfer.loopback.small.times_scp", rate / (500 / scp(at, few)), "×")


def loopback_middle(quick: bool, note: Note) -> None:
    with ground(slow=False) as at:
        middle = make_set(at.folder / "middle", 500 if quick else 2000, 500 << 10, 500 << 10)
        warm(middle)
        note("transfer.loopback.middle.rsync_seconds", rsync(at, middle), "s")
        note("transfer.loopback.middle.seconds", ours(at, middle), "s")


def loopback_large(quick: bool, note: Note) -> None:
    """1 GiB against rsync, tar and scp, in turn, each onto a disk as the one before found it.

    The best of the others is the tool with the lowest median over as many tries as ours: the
    fastest of all their tries would be picked from three times as many.
    """
    tools = {"ours": ours, "rsync": rsync, "tar": tar, "scp": scp}
    seconds: dict[str, list[float]] = {name: [] for name in tools}
    cpu: dict[str, list[float]] = {name: [] for name in tools}
    with ground(slow=False, gigabytes=4) as at:
        large = make_set(at.folder / "large", 1, 1 << 30, 1 << 30)
        warm(large)
        for turn in range(3 if quick else 8):
            for name, tool in tools.items():
                took = tool(at, large)
                at.remove_fresh()
                if turn:  # the first one fills the disk's blocks for all that follow
                    seconds[name].append(took)
                    cpu[name].append(at.cpu)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    mine = medians.pop("ours")
    note("transfer.loopback.large.seconds", mine, "s")
    for name, each in medians.items():
        note(f"transfer.loopback.large.{name}_seconds", each, "s")
    note("transfer.loopback.large.rate_to_best", min(medians.values()) / mine)
    quickest = {name: min(each) for name, each in seconds.items()}
    best = min(quickest[name] for name in medians)
    note("transfer.loopback.large.quickest_to_quickest", best / quickest["ours"])
    spent = statistics.median(cpu["scp"]) / statistics.median(cpu["ours"])
    note("transfer.loopback.large.cpu_of_scp_to_ours", spent)


def slow_small(quick: bool, note: Note) -> None:
    small = 20_000 if quick else 100_000
    with ground(slow=True) as at:
        many = make_set(at.folder / "many", small, 1024, 8192)
        few = make_set(at.folder / "few", FEW, 1024, 8192)
        size = sum(each.stat().st_size for each in many.rglob("*.png"))
        floor = size * 8 / 100e6
        mine, theirs = ours(at, many), rsync(at, many)
        note("transfer.slow.small.seconds", mine, "s")
        note("transfer.slow.small.rsync_seconds", theirs, "s")
        note("transfer.slow.small.share_of_line", floor / mine)
        note("transfer.slow.small.ratio_to_rsync", mine / theirs)
        note("transfer.slow.small.times_put", small / mine / (FEW / put(at, few)), "×")
        note("transfer.slow.small.times_scp", small / mine / (FEW / scp(at, few)), "×")


def loopback_unchanged(quick: bool, note: Note) -> None:
    """100,000 files that are on the box already; then three changes among them."""
    with ground(slow=False) as at:
        many, data = there_already(at, "loopback", note)
        change_three(many)
        before = disk_use(data)
        note("transfer.loopback.changed.seconds", ours(at, many, data), "s")
        note("transfer.loopback.changed.packed_kib", (disk_use(data) - before) / 1024, "KiB")
        ssh = shlex.join(["ssh", *at.ssh_options()])
        command = ["rsync", "-a", "-e", ssh, f"{many}/", f"box:{at.fresh('rsync')}/"]
        at.run(*command)
        note("transfer.loopback.unchanged.rsync_seconds", at.run(*command), "s")


def slow_unchanged(quick: bool, note: Note) -> None:
    with ground(slow=True) as at:
        there_already(at, "slow", note)


def lossy_streams(quick: bool, note: Note) -> None:
    """One stream and four where one packet in a hundred is lost, under a loss-based TCP and BBR."""
    for congestion in ("reno", "bbr"):
        with ground(slow=True, lost=10_000, congestion=congestion) as at:
            files = make_set(at.folder / "files", 12 if quick else 24, 1 << 20, 1 << 20)
            one = ours(at, files)
            four = ours(at, files, more="streams = 4\n")
            note(f"transfer.lossy.{congestion}.one_seconds", one, "s")
            note(f"transfer.lossy.{congestion}.four_seconds", four, "s")
            note(f"transfer.lossy.{congestion}.streams_gain", one / four, "×")


def slow_mnist(quick: bool, note: Note) -> None:
    """Four files of pixels, which get smaller when squeezed."""
    with ground(slow=True) as at:
        files = at.folder / "mnist"
        shutil.copytree(mnist.folder(), files)
        theirs, mine = rsync(at, files), ours(at, files)
        note("transfer.slow.mnist.seconds", mine, "s")
        note("transfer.slow.mnist.rsync_seconds", theirs, "s")
        note("transfer.slow.mnist.ratio_to_rsync", mine / theirs)


def there_already(at: Ground, where: str, note: Note) -> tuple[Path, Path]:
    """The set, and the box's data folder that has it."""
    many = make_set(at.folder / "many", 100_000, 1024, 8192)
    data = at.fresh("data")
    ours(at, many, data)
    again, spent = [], []
    for _ in range(5):
        again.append(ours(at, many, data))
        spent.append(at.cpu)
    note(f"transfer.{where}.unchanged.seconds", min(again), "s")
    note(f"transfer.{where}.unchanged.cpu_seconds", min(spent), "s")
    return many, data


def change_three(many: Path) -> None:
    """One file of 5 KB changed, one added, one removed."""
    (many / "class010" / "image_005000.png").write_bytes(os.urandom(5000))
    (many / "class011" / "added.png").write_bytes(os.urandom(5000))
    (many / "class012" / "image_006000.png").unlink()


def disk_use(data: Path) -> int:
    """Bytes in packs."""
    return sum(each.stat().st_size for each in data.rglob("*.tar"))


def warm(folder: Path) -> None:
    for each in folder.rglob("*"):
        if each.is_file():
            with each.open("rb") as file:
                while file.read(1 << 20):
                    pass


MILLION = """
import sys, tempfile
from pathlib import Path
from bench.uploads import plan_only
plan_only(sys.argv[1])
"""


def million(quick: bool, note: Note) -> None:
    """Scan, manifest and comparison of a million files: seconds and memory."""
    import tempfile
    import time

    count = 100_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        root = Path(folder) / "set"
        for i in range(count):
            if i % 1000 == 0:
                (root / f"d{i // 1000:04}").mkdir(parents=True)
            (root / f"d{i // 1000:04}" / f"f{i:07}").write_bytes(b"%d" % i)
        env = {**os.environ, "GPUBOX_HOME": folder + "/home"}
        for what in ("first", "again"):
            before, began = spent(), time.monotonic()
            subprocess.run([python(), "-c", MILLION, str(root)], check=True, env=env, cwd=ROOT)
            note(f"transfer.plan.{what}.seconds", time.monotonic() - began, "s")
            note(f"transfer.plan.{what}.cpu_seconds", spent() - before, "s")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        note("transfer.plan.peak_mib", peak, "MiB")


def spent() -> float:
    """CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plan_only(root: str) -> None:
    """What an upload does before it sends: scan, checksums of all files, manifest, comparison."""
    import tempfile

    from deploy.effects.hashes import Memory
    from deploy.effects.manifests import Base, draft_manifest, finish_manifest
    from deploy.effects.scan import scan, scan_line
    from deploy.effects.summing import summed
    from deploy.plan.transfer import Totals, entry_from, key_of, steps

    memory = Memory(root, ())
    with tempfile.TemporaryDirectory(dir=memory.folder) as folder:
        mark = scan(root, (), Path(folder) / "scan").fingerprint
        memory.remember(mark, memory.recall(Path(folder) / "scan"))
        asked = ((each, not each.sha256 and each.type == "file") for each in memory.found())
        memory.remember(mark, map(scan_line, summed(root, asked)))
        changes = ((key_of(each), entry_from(each)) for each in memory.found())
        drafted = draft_manifest((), changes, Path(folder), "")
        written, _ = finish_manifest(drafted)
        totals = Totals()
        for step in steps(memory.found(), Base(written).entries(), True):
            totals.add(step)
        assert totals.changes == 0, totals
    print(drafted.version[:12], drafted.header.files, file=sys.stderr)


SCENARIOS: dict[str, Callable[..., None]] = {
    "loopback-small": loopback_small,
    "loopback-middle": loopback_middle,
    "loopback-large": loopback_large,
    "loopback-unchanged": loopback_unchanged,
    "slow-small": slow_small,
    "slow-unchanged": slow_unchanged,
    "slow-mnist": slow_mnist,
    "lossy-streams": lossy_streams,
    "plan": million,
}
