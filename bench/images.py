"""Sizes, rebuild, cold start and shipping of the images, against the plain way: `python -m bench.images`.

    --quick   one repetition instead of three
    --json    figures as JSON        --check   exit 1 where a target is missed
    --only A  only some parts, with commas between: sizes, rebuilds, starts, ship
    --out F   write the figures over those of the same names in the file F as well
Needs a Docker engine; ships to a real box in a container. Ours and `docker save | ssh docker load`
are measured by turns; of several repetitions the best counts, for other work only adds.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.grounds import as_json
from bench.targets import shortfalls
from bench.transfer import chosen, keep
from deploy.effects import engine
from deploy.verbs import bring, shipping
from images import build
from tests.box.box import Boxes, docker

CPU, GPU, CHANGED = "gpubox/cpu:latest", "gpubox/gpu:latest", "gpubox-bench/changed:latest"
WITHOUT_OURS = (
    "sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != 'TensorFlow']"
)
CHANGED_BYTES = 3 << 20  # of random content, so that they can't be compressed
Note = Callable[[str, float, str], None]


def seconds(act: Callable[[], object]) -> float:
    """How long `act` takes."""
    began = time.monotonic()
    act()
    return time.monotonic() - began


def sizes(turns: int, note: Note) -> None:
    """Bytes as the engine counts them; the GPU image only where it is there."""
    for name, tag in (("cpu", CPU), ("gpu", GPU)):
        if build.engine_has(tag):
            note(f"images.{name}.bytes", engine.image_here(tag)["size"], "B")


def rebuilds(turns: int, note: Note) -> None:
    """A changed workload, in a copy of the clone, and a build in which nothing changed."""
    with tempfile.TemporaryDirectory(prefix="gpubox-bench-") as folder, clone(folder) as copy:
        command = [copy / "images/build.py", "cpu", "--quiet", "--tag", CHANGED]
        run = lambda: subprocess.run(command, check=True, capture_output=True)  # noqa: E731
        run()
        changed = []
        for _ in range(turns):
            (copy / "workload" / "changed.py").write_text(f"# {time.time_ns()}\n")
            changed.append(seconds(run))
        note("images.rebuild_seconds", min(changed), "s")
        note("images.unchanged_seconds", min(seconds(run) for _ in range(turns)), "s")


def starts(turns: int, note: Note) -> None:
    """`import tensorflow` in a new container, as it comes and as it would be without our start."""
    cpu: list[float] = []

    def start(code: str) -> None:
        script = f"import os, sys; {code}; t = os.times(); print(t.user + t.system)"
        done = docker("run", "--rm", "--network", "none", CPU, "python", "-c", script)
        cpu.append(float(done.stdout))

    codes = {
        "empty": "pass",
        "import_plain": f"{WITHOUT_OURS}; import tensorflow",
        "import": "import tensorflow",
    }
    taken = {}
    for name, code in codes.items():
        cpu.clear()
        taken[name] = min(seconds(functools.partial(start, code)) for _ in range(turns))
        note(f"images.{name}_seconds", taken[name], "s")
        note(f"images.{name}_cpu_seconds", min(cpu), "CPU s")
    note("images.import_ratio_to_plain", taken["import"] / taken["import_plain"], "")


def changed_image() -> None:
    """CHANGED: our CPU image and one more layer of 3 MiB."""
    code = f"open('/tmp/random', 'wb').write(open('/dev/urandom', 'rb').read({CHANGED_BYTES}))"
    docker(
        "build",
        "--quiet",
        "--no-cache",
        "--tag",
        CHANGED,
        "-",
        input=f'FROM {CPU}\nRUN python3 -c "{code}"\n',
    )


class Shipping:
    """One box, and both ways to it; `sent` are the bytes of our last way."""

    def __init__(self, boxes: Boxes) -> None:
        self.box = boxes.start("engine")
        self.sent = 0
        frames = shipping.frames_from_here

        def counted(*arguments):
            self.sent = 0
            for block in frames(*arguments):
                self.sent += len(block)
                yield block

        shipping.frames_from_here = counted

    def empty(self, *tags: str) -> None:
        for tag in tags:
            self.box.run("docker", "image", "rm", tag, check=False)

    def ours(self, tag: str) -> None:
        with self.box.desk().open(self.box.name) as agent:
            shipping.send_image(self.box.desk(), agent, tag, engine.image_here(tag))

    def plain(self, tag: str) -> None:
        """`docker save TAG | ssh BOX docker load`."""
        save = subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE)
        ssh = ["ssh", "-F", str(self.box.ssh_config), self.box.name, "docker load --quiet"]
        subprocess.run(ssh, stdin=save.stdout, check=True, capture_output=True)
        assert save.wait() == 0


def save(tag: str) -> None:
    """`docker save` alone, into nothing."""
    subprocess.run(["docker", "save", tag], check=True, stdout=subprocess.DEVNULL)


def to_a_box(turns: int, note: Note) -> None:
    """The whole CPU image to an empty box, and a layer more to a box that has it."""
    with tempfile.TemporaryDirectory(prefix="gpubox-bench-") as folder:
        boxes = Boxes(Path(folder))
        os.environ["GPUBOX_CONFIG"] = str(boxes.toml)
        try:
            both = Shipping(boxes)
            for way, act in (("plain", both.plain), ("ours", both.ours)):
                both.empty(CHANGED, CPU)
                note(f"images.ship.whole.{way}_seconds", seconds(functools.partial(act, CPU)), "s")
            note("images.ship.whole.plain_bytes", engine.image_here(CPU)["size"], "B")
            note("images.ship.whole.ours_bytes", both.sent, "B")
            _changed(both, turns, note)
            _workload(both, turns, note)
        finally:
            boxes.stop()
            docker("image", "rm", CHANGED, check=False)


def _changed(both: Shipping, turns: int, note: Note) -> None:
    taken: dict[str, list[float]] = {"plain": [], "ours": [], "save": []}
    ways = {"save": save, "ours": both.ours, "plain": both.plain}
    for _ in range(turns):
        changed_image()
        for way, act in ways.items():
            both.empty(CHANGED)
            taken[way].append(seconds(functools.partial(act, CHANGED)))
    for way, each in taken.items():
        note(f"images.ship.changed.{way}_seconds", min(each), "s")
    note("images.ship.changed.ours_bytes", both.sent, "B")
    note("images.ship.changed.bytes_ratio", both.sent / CHANGED_BYTES, "of its changed layers")
    note("images.ship.changed.ratio_to_plain", min(taken["ours"]) / min(taken["plain"]), "")
    note("images.ship.changed.ratio_to_save", min(taken["ours"]) / min(taken["save"]), "")


def _workload(both: Shipping, turns: int, note: Note) -> None:
    """A changed workload as a deploy brings it: added on the box to what does not change."""
    desk = both.box.desk()
    taken, saves = [], []
    with tempfile.TemporaryDirectory(prefix="gpubox-bench-") as folder, clone(folder) as copy:
        with desk.open(both.box.name) as agent:
            bring.ship_ours(desk, agent, "cpu", CPU, "the first time")
            for _ in range(turns):
                (copy / "workload" / "changed.py").write_text(f"# {time.time_ns()}\n")
                act = functools.partial(bring.ship_ours, desk, agent, "cpu", CPU, "changed")
                taken.append(seconds(act))
                saves.append(seconds(functools.partial(save, CPU)))
        content = engine.context_tar("cpu")
    note("images.ship.workload.ours_seconds", min(taken), "s")
    note("images.ship.workload.ours_bytes", len(content), "B")
    note("images.ship.workload.bytes_ratio", len(content) / programs(), "of its changed layers")
    note("images.ship.workload.ratio_to_save", min(taken) / min(saves), "")


def programs() -> int:
    """Bytes of the layers that a changed workload changes, as the engine counts them."""
    listed = docker("history", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", CPU).stdout
    lines = [line.split(" ", 1) for line in listed.splitlines()]
    return sum(int(size) for size, by in lines if "workload/" in by or "onbox/" in by)


@contextmanager
def clone(folder: str) -> Iterator[Path]:
    """A copy of what images are made from, in the place of this clone."""
    copy, own = Path(folder), engine.root
    for name in ("images", "workload", "deploy", "Dockerfile.cpu", ".dockerignore"):
        subprocess.run(["cp", "-r", build.ROOT / name, copy / name], check=True)
    engine.root = lambda: copy
    try:
        yield copy
    finally:
        engine.root = own


def main() -> int:
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for flag in ("--quick", "--json", "--check"):
        ask.add_argument(flag, action="store_true")
    ask.add_argument("--only", default="")
    ask.add_argument("--out", type=Path)
    asked = ask.parse_args()
    turns = 1 if asked.quick else 3
    figures: dict[str, float] = {}

    def note(name: str, value: float, unit: str = "") -> None:
        figures[name] = value
        print(f"{name:45} {value:14.5g} {unit}", file=sys.stderr, flush=True)

    subprocess.run(
        [build.ROOT / "images/build.py", "cpu", "--quiet"], check=True, stdout=sys.stderr
    )
    parts = {"sizes": sizes, "rebuilds": rebuilds, "starts": starts, "ship": to_a_box}
    for name in chosen(asked.only, parts):
        parts[name](turns, note)
        if asked.out:
            keep(asked.out, figures)
    if asked.json:
        print(as_json(figures))
    missed = shortfalls(figures)
    print("\n".join(missed), file=sys.stderr)
    return 1 if asked.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
