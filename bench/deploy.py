"""What a deploy and a status cost where nothing has changed: requests, and time over the program's own.

    python -m bench.deploy [--quick] [--json] [--check]

The box is a real sshd on this machine, its training a real one (BP on MNIST, as a process). Once
over loopback, once with 200 ms of round trip in the line. Needs sshd and .venv-train.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import mnist
from bench.targets import shortfalls
from deploy.console import Show
from deploy.effects.link import Link
from deploy.verbs.deploy import deploy_to
from deploy.verbs.desk import Desk
from deploy.verbs.status import status
from deploy.verbs.stop import stop
from tests.sshd import Boxes, free_port

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-train" / "bin" / "python"
LINE = 0.2  # seconds of round trip
COMMAND = ["python", "-m", "workload", "bp", "--steps", "200000", "--save-every", "0"]
TOML = f"""runner = "process"
python = "{PYTHON}"
device = "cpu"
[data.mnist]
path = "MNIST"
[run]
data = "mnist"
command = {json.dumps(COMMAND)}
"""


class Counting:
    """A link that counts what is asked of the box."""

    def __init__(self, link: Link) -> None:
        self._link, self.requests = link, 0
        self.name = link.name

    def run(self, *arguments: Any, **options: Any) -> Any:
        self.requests += 1
        return self._link.run(*arguments, **options)

    def stream(self, command: str) -> Any:
        self.requests += 1
        return self._link.stream(command)

    def close(self) -> None:
        self._link.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


def main() -> int:
    arguments = parser().parse_args()
    rounds = 1 if arguments.quick else 3
    with tempfile.TemporaryDirectory(prefix="gpubox-bench-") as folder, ground(Path(folder)):
        figures = measure(rounds)
    if arguments.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name:45} {value:8.2f}")
    missed = shortfalls(figures)
    for line in missed if arguments.check else []:
        print(line, file=sys.stderr)
    return int(arguments.check and bool(missed))


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser("bench.deploy", description=__doc__)
    known.add_argument("--quick", action="store_true", help="one round")
    known.add_argument("--json", action="store_true")
    known.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    return known


@contextlib.contextmanager
def ground(folder: Path) -> Iterator[None]:
    """Two names of one box: `near` by loopback, `far` with the delay in the line."""
    os.environ.update(HOME=str(folder), GPUBOX_HOME=str(folder / ".gpubox"))
    boxes = Boxes(folder)
    server = boxes.start("near", toml=TOML.replace("MNIST", str(mnist.folder())))
    os.environ["GPUBOX_CONFIG"] = str(boxes.toml)
    try:
        with far_line(server.port) as port:
            _make_far(boxes, server, port)
            try:
                yield
            finally:  # the keeper that the deploys armed would outlive the bench
                with Desk(Show(machine=True), ["near"]).open("near") as box:
                    box.call("disarm")
    finally:
        boxes.stop()


@contextlib.contextmanager
def far_line(port: int) -> Iterator[int]:
    """A port of this machine that is LINE seconds of round trip away from `port`."""
    outer = free_port()
    words = [sys.executable, "-m", "bench.relay", json.dumps([[outer, port]]), str(LINE)]
    relaying = subprocess.Popen(words, cwd=ROOT)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", outer), 1):
                break
            time.sleep(0.1)
        yield outer
    finally:
        relaying.kill()
        relaying.wait()


def _make_far(boxes: Any, server: Any, port: int) -> None:
    lines = boxes.ssh_config.read_text()
    far = lines.replace("Host near", "Host far").replace(f"Port {server.port}", f"Port {port}")
    boxes.ssh_config.write_text(lines + far)
    known = boxes.known_hosts.read_text().replace(f":{server.port} ", f":{port} ")
    with boxes.known_hosts.open("a") as file:
        file.write(known)
    text = boxes.toml.read_text()
    table, rest = text.split("[data.mnist]")
    again = table[table.index("[boxes.near]") :].replace("near]", "far]").replace('"near"', '"far"')
    boxes.toml.write_text(table + again + "[data.mnist]" + rest)


def measure(rounds: int) -> dict[str, float]:
    """Figures of the warm deploy and of the status; the cold deploy before is not measured."""
    warm("near", new=False)
    rows = [{"near": warm("near")} for _ in range(rounds)]
    warm("far")  # the keeper learns the other name: not a deploy where nothing has changed
    for row in rows:
        row["far"] = warm("far")
    over = [row["near"]["over"] for row in rows]
    line = [row["far"]["over"] - row["near"]["over"] for row in rows]
    near, far = (
        min((asked_status(name) for _ in range(rounds)), key=lambda each: each["seconds"])
        for name in ("near", "far")
    )
    return {
        "deploy.warm_requests": float(max(row["near"]["requests"] for row in rows)),
        "deploy.warm_over_program_seconds": sorted(over)[len(over) // 2],
        "deploy.program_seconds": sorted(row["near"]["program"] for row in rows)[len(rows) // 2],
        "deploy.warm_line_round_trips": sorted(line)[len(line) // 2] / LINE,
        "status.requests": float(near["requests"]),
        "status.seconds": near["seconds"],
        "status.line_round_trips": (far["seconds"] - near["seconds"]) / LINE,
    }


def warm(name: str, new: bool = True) -> dict[str, float]:
    """A deploy of exactly what is there, from the open connection to the first step.

    `program` is what the program itself took from its start to its first step in this very run,
    so that a machine with other work on it does not blur what is `over`.
    """
    desk = Desk(Show(machine=True), [name])
    with desk.open(name) as box:
        box.link = Counting(box.link)  # type: ignore[assignment]
        began = time.monotonic()
        report = deploy_to(desk, name, box, "", "", "", "", new)
        seconds = time.monotonic() - began
        requests = box.link.requests  # type: ignore[attr-defined]
    assert report["outcome"] == "first-step", report
    stop(desk, report["id"], now=True)
    program = report["state"]["phases"]["first step"]
    return {"over": seconds - program, "program": program, "requests": requests}


def asked_status(name: str) -> dict[str, float]:
    """`fab status` of one box, from the open connection and its first session on."""
    desk = Desk(Show(machine=True), [name])
    with desk.open(name) as box:
        link = Counting(box.link)
        box.link = link  # type: ignore[assignment]
        desk.open = lambda _: contextlib.nullcontext(box)  # type: ignore[method-assign,assignment]
        time.sleep(2 * LINE)  # the first session of a connection is opened as it is made
        began = time.monotonic()
        status(desk)
        return {"seconds": time.monotonic() - began, "requests": link.requests}


if __name__ == "__main__":
    sys.exit(main())
