"""Many boxes at once: `fab status` over real sshds on loopback, with a round trip of 50 ms to each.

    python -m bench.fleet [--quick] [--boxes 100] [--json] [--check]

The boxes are this machine: a real sshd and a home of its own each, so the sshds' work (about as much
as the laptop's) is done by the same cores; the figures are upper bounds. `python` measures boxes
without a keeper, where the answer is made by the program on the box instead of read from its file.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.targets import shortfalls
from deploy.effects.fleet import AT_ONCE

ROOT = Path(__file__).resolve().parent.parent
SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
SetEnv HOME={folder}/homes/{name}
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ten boxes")
    parser.add_argument("--boxes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    arguments = parser.parse_args()
    count = 10 if arguments.quick else arguments.boxes
    figures = measure(count)
    print(json.dumps(figures, indent=1) if arguments.json else table(figures, count))
    missed = shortfalls(figures) if count == 100 else []
    print("".join(f"missed: {line}\n" for line in missed), end="", file=sys.stderr)
    return 1 if missed and arguments.check else 0


def measure(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="gpubox-fleet-") as name, ExitStack() as stack:
        folder = Path(name)
        servers, line = make_boxes(stack, folder, count)
        pids = [each.process.pid for each in servers]
        figures, names = {"boxes": float(count)}, [f"box{i}" for i in range(count)]
        figures["fleet.one_seconds"] = timed(folder, ["box0"])["seconds"]
        before = worked(pids), worked(line)
        every = timed(folder, names)
        figures["fleet.boxes_cpu_seconds"] = worked(pids) - before[0]
        figures["fleet.line_cpu_seconds"] = worked(line) - before[1]
        figures["fleet.seconds"] = every["seconds"]
        figures["fleet.peak_mib"] = timed(folder, names, watched=True)["peak_mib"]
        figures["fleet.cpu_seconds"] = every["cpu_seconds"]
        figures["fleet.plain_ssh_seconds"] = plain_ssh(folder, count)
        figures["fleet.ratio_to_plain_ssh"] = every["seconds"] / figures["fleet.plain_ssh_seconds"]
        with frozen(servers[0].process):
            dead = timed(folder, names, "10")
        figures["fleet.one_silent_seconds"] = dead["seconds"]
        figures["fleet.one_silent_answered"] = dead["answered"]
        for i in range(count):
            (folder / "homes" / f"box{i}" / ".gpubox" / "overview.json").unlink()
        figures["fleet.python_seconds"] = timed(folder, names)["seconds"]
        return figures


def plain_ssh(folder: Path, count: int) -> float:
    """Seconds for `ssh BOX true` to every box, as many at a time: what nothing that goes by ssh
    can be faster than, on this machine and with ssh's own settings."""

    def ask(name: str) -> None:
        command = ["ssh", "-T", "-F", str(folder / "ssh"), "-o", "BatchMode=yes", "--", name]
        subprocess.run([*command, "true"], check=True, stdin=subprocess.DEVNULL)

    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(ask, [f"box{i}" for i in range(count)]))
    return time.monotonic() - began


def worked(pids: list[int]) -> float:
    """CPU seconds of some processes, their children that have ended included."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Server:
    """One sshd, and the port of the relay that leads to it."""

    def __init__(self, folder: Path, name: str, port: int) -> None:
        settings = folder / f"{name}.conf"
        settings.write_text(SSHD.format(folder=folder, name=name, port=port))
        program = shutil.which("sshd") or "/usr/sbin/sshd"
        self.port = port
        self.process = subprocess.Popen(
            [program, "-D", "-e", "-f", str(settings)], stderr=subprocess.DEVNULL
        )


def make_boxes(stack: ExitStack, folder: Path, count: int) -> tuple[list[Server], list[int]]:
    """The sshds, the relay before them (its pid), the homes with the kit in them, the laptop's files."""
    for key in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, check=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    free = free_ports(2 * count)
    servers = [Server(folder, f"box{i}", free[i]) for i in range(count)]
    for each in servers:
        stack.callback(each.process.wait)
        stack.callback(each.process.terminate)
        wait_for(each.port)
    pairs = [[free[count + i], free[i]] for i in range(count)]
    relaying = subprocess.Popen([sys.executable, "-m", "bench.relay", json.dumps(pairs)], cwd=ROOT)
    stack.callback(relaying.wait)
    stack.callback(relaying.terminate)
    wait_for(pairs[-1][0])
    write_laptop(folder, [pair[0] for pair in pairs])
    settle(folder, count)
    return servers, [relaying.pid]


def write_laptop(folder: Path, ports: list[int]) -> None:
    lines, hosts, known = [f"ssh_config = {json.dumps(str(folder / 'ssh'))}"], [], []
    key = (folder / "host.pub").read_text().split()[:2]
    for i, port in enumerate(ports):
        (folder / "homes" / f"box{i}").mkdir(parents=True)
        lines += [f"[boxes.box{i}]", f'data = "{folder}/data"', f'input = "{folder}/input"']
        hosts += [
            f"Host box{i}",
            "  HostName 127.0.0.1",
            f"  Port {port}",
            f"  User {getpass.getuser()}",
        ]
        hosts += [f"  IdentityFile {folder}/user", f"  UserKnownHostsFile {folder}/known"]
        hosts += ["  IdentitiesOnly yes", "  GlobalKnownHostsFile none"]
        known += [f"[127.0.0.1]:{port} {' '.join(key)}"]
    for name in ("data", "input"):
        (folder / name).mkdir()
    (folder / "gpubox.toml").write_text("\n".join(lines) + "\n")
    (folder / "ssh").write_text("\n".join(hosts) + "\n")
    (folder / "known").write_text("\n".join(known) + "\n")


def settle(folder: Path, count: int) -> None:
    """The program in every home, and in each what a keeper would have written just now."""
    from deploy.effects.bundle import onbox_bundle

    name, content = onbox_bundle()
    home = folder / "homes" / "box0" / ".gpubox"
    home.mkdir()
    (home / name).write_bytes(content)
    request = json.dumps(
        {"folders": {"data": str(folder / "data"), "input": str(folder / "input")}}
    )
    environment = {**os.environ, "HOME": str(home.parent), "GPUBOX_HOME": str(home)}
    command = [sys.executable, home / name, "overview"]
    done = subprocess.run(
        command, input=request + "\n", capture_output=True, text=True, env=environment
    )
    answer = done.stdout.split("@gpubox-answer\n")[1].split("\n@gpubox-end")[0]
    for i in range(count):
        home = folder / "homes" / f"box{i}" / ".gpubox"
        home.mkdir(exist_ok=True)
        (home / name).write_bytes(content)
        (home / "overview.json").write_text(answer)


def timed(
    folder: Path, names: list[str], deadline: str = "60", watched: bool = False
) -> dict[str, float]:
    """`fab status` as a person calls it: seconds, CPU seconds, and where it is watched the peak of
    what the command and its children hold (PSS: shared pages are counted once), a look at which
    takes as much work as a few boxes."""
    command = [
        str(Path(sys.executable).parent / "fab"),
        "status",
        "--json",
        "--hosts",
        ",".join(names),
    ]
    environment = {
        **os.environ,
        "GPUBOX_CONFIG": str(folder / "gpubox.toml"),
        "GPUBOX_HOME": str(folder / "laptop"),
    }
    before, began = os.times(), time.monotonic()
    with (folder / "out").open("w") as out:
        fab = subprocess.Popen(
            [*command, "--deadline", deadline], cwd=ROOT, stdout=out, env=environment
        )
        peak = 0
        while fab.poll() is None:
            peak = max(peak, held_by(fab.pid) if watched else 0)
            time.sleep(0.05)
    seconds, after = time.monotonic() - began, os.times()
    results = json.loads((folder / "out").read_text())["results"]
    good = sum(each.get("answered", True) for each in results)
    if deadline == "60" and good != len(names):
        raise SystemExit(f"{good} of {len(names)} boxes answered: {results[0]}")
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_mib": peak / 1024, "answered": good}


def held_by(pid: int, parent: bytes = b"") -> int:
    """KiB of a process and those below it; a child that is about to become another program still
    is its parent, and is counted with it."""
    total = 0
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        if words == parent:
            return 0
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total = int(line.split()[1])
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            total += sum(held_by(int(child), words) for child in task.read_text().split())
    except (OSError, ValueError):
        pass
    return total


@contextmanager
def frozen(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A box that takes connections and says nothing."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"nothing answers at port {port}")


def table(figures: dict[str, float], count: int) -> str:
    rows = [
        ("one box", f"{figures['fleet.one_seconds']:.2f} s"),
        (f"{count} boxes, each with a keeper", f"{figures['fleet.seconds']:.2f} s"),
        ("  CPU of the laptop's side", f"{figures['fleet.cpu_seconds']:.2f} s"),
        ("  CPU of the line that is simulated", f"{figures['fleet.line_cpu_seconds']:.2f} s"),
        ("  CPU of the boxes' sshds", f"{figures['fleet.boxes_cpu_seconds']:.2f} s"),
        ("  against `ssh BOX true` for each", f"{figures['fleet.ratio_to_plain_ssh']:.2f} x"),
        ("  its memory at most", f"{figures['fleet.peak_mib']:.0f} MiB"),
        ("  one of them silent, deadline 10 s", f"{figures['fleet.one_silent_seconds']:.2f} s"),
        ("without keepers (a Python on each)", f"{figures['fleet.python_seconds']:.2f} s"),
    ]
    return "\n".join(f"{what:<40}{value:>10}" for what, value in rows)


if __name__ == "__main__":
    sys.exit(main())
