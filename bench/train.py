"""Training rates: plain TensorFlow-1, Keras `fit` and ours, interleaved in one process.

`python -m bench.train [--quick] [--json] [--check]`. Wall times swing with what else runs on the
machine, so the figure that counts is the ratio of CPU times of rounds that alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import mnist, targets
from workload import device

STEPS = {"cnn": 20, "bp": 300}  # of one round
device.before_import()  # all sides alike


def defaults(program: str) -> argparse.Namespace:
    """The program's arguments as nobody changed them."""
    from workload import flags

    values = {flag.name: flag.default for flag in flags.PROGRAMS[program]}
    return argparse.Namespace(model=program, **values)


class Ours:
    """The workload's own loop over resident data."""

    def __init__(self, program: str, dataset: Any) -> None:
        from workload.feed import Resident
        from workload.loop import Loop

        self.arguments = defaults(program)
        self.count, self.at = len(dataset.train.labels), 0
        epoch = self.count / self.arguments.batch
        self.loop = Loop(self.arguments, dataset.image_shape, dataset.classes, epoch)
        self.feed = Resident(dataset.train)

    def steps(self, count: int) -> None:
        """Trains `count` steps in one call."""
        import numpy as np

        from workload import order

        rows = order.batches(1, self.count, self.arguments.batch, self.at, count)
        loss, _ = self.loop.train(*self.feed(rows), np.int32(self.at))
        float(loss)
        self.at += count


class Keras:
    """The same net by Keras, trained by `fit` on numpy arrays."""

    def __init__(self, program: str, dataset: Any) -> None:
        import tensorflow as tf

        layers, self.batch = tf.keras.layers, defaults(program).batch
        if program == "cnn":
            self.images = dataset.train.images.astype("float32") / 255.0
            net: list[Any] = [layers.Input((28, 28, 1))]
            for channels in (32, 64):
                net.append(layers.Conv2D(channels, 5, padding="same", activation="relu"))
                net.append(layers.MaxPool2D(2))
            net += [layers.Flatten(), layers.Dense(1024, "relu"), layers.Dropout(0.5)]
            optimizer = tf.keras.optimizers.Adam(1e-4)
        else:
            self.images = dataset.train.images.reshape(-1, 784).astype("float32")
            penalty = tf.keras.regularizers.L2(0.005)
            net = [layers.Input((784,)), layers.Dense(500, "relu", kernel_regularizer=penalty)]
            rate = tf.keras.optimizers.schedules.ExponentialDecay(0.005, 270, 0.99)
            optimizer = tf.keras.optimizers.SGD(
                rate, use_ema=True, ema_momentum=0.99, ema_overwrite_frequency=None
            )
        self.net = tf.keras.Sequential([*net, layers.Dense(10)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.net.compile(optimizer, loss)
        self.labels = dataset.train.labels

    def steps(self, count: int) -> None:
        """One `fit` over as many images as make `count` batches."""
        n = count * self.batch
        images, labels = self.images[:n], self.labels[:n]
        self.net.fit(images, labels, batch_size=self.batch, epochs=1, verbose=0)


def rounds(sides: dict[str, Any], steps: int, count: int) -> dict[str, dict[str, list[float]]]:
    """CPU and wall ms a step of each side in `count` alternating rounds, after one to warm up."""
    found: dict[str, dict[str, list[float]]] = {n: {"cpu": [], "wall": []} for n in sides}
    for number in range(count + 1):
        for name, side in sides.items():
            cpu, wall = time.process_time(), time.perf_counter()
            side.steps(steps)
            if number:
                found[name]["cpu"].append(1e3 * (time.process_time() - cpu) / steps)
                found[name]["wall"].append(1e3 * (time.perf_counter() - wall) / steps)
    return found


def compare(program: str, quick: bool) -> dict[str, Any]:
    """Medians of CPU and wall ms a step of the three sides, and the ratios of their rates.

    A ratio is the median over rounds of (the other's CPU time / ours) in the same round.
    """
    from bench.plain import Plain
    from workload import data, device

    dataset = data.load(mnist.folder())
    train = dataset.train
    sides = {
        "plain": Plain(program, train.images, train.labels, device.cores()),
        "keras": Keras(program, dataset),
        "ours": Ours(program, dataset),
    }
    found = rounds(sides, STEPS[program], 4 if quick else 10)
    ours = found["ours"]
    figures: dict[str, Any] = {
        name: {f"{kind}_ms": round(statistics.median(ms), 3) for kind, ms in each.items()}
        for name, each in found.items()
    }
    for other in ("plain", "keras"):
        for kind in ("cpu", "wall"):
            pairs = zip(found[other][kind], ours[kind], strict=True)
            ratio = statistics.median(theirs / mine for theirs, mine in pairs)
            figures[f"ratio_to_{other}_{kind}"] = round(ratio, 3)
    return figures


LOADING = """
import re, sys, time
from pathlib import Path
from workload import data
began = time.perf_counter()
found = data.load(Path(sys.argv[1]))
total = int(found.train.images[:, 14, 14].sum()) + int(found.test.images[:, 14, 14].sum())
seconds = time.perf_counter() - began
# ru_maxrss would be the parent's from before the exec
print(seconds, int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
"""


def loading() -> dict[str, float]:
    """Seconds to load MNIST and touch every image, and the process's peak MiB, in a fresh one."""
    tries = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", LOADING, str(mnist.folder())],
            capture_output=True,
            text=True,
            check=True,
        )
        tries.append([float(word) for word in done.stdout.split()])
    return {"seconds": round(min(t[0] for t in tries), 4), "peak_mib": round(tries[0][1], 1)}


REPORT = """
import os, re, sys, time
from pathlib import Path
def report(*_, **__):
    peak = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]
    print("first step", time.process_time(), int(peak) / 1024, flush=True)
    os._exit(0)
"""
STARTS = {
    "ours": REPORT
    + """
from workload import progress
progress.Progress.advance = report
from workload.__main__ import main
sys.exit(main([sys.argv[1], "--save-every", "0"]))
""",
    "plain": REPORT
    + """
from workload import data, device
from bench.plain import Plain
part = data.load(Path(os.environ["GPUBOX_INPUT"])).train
Plain(sys.argv[1], part.images, part.labels, device.cores()).steps(10)  # as our first call
report()
""",
}


def starting(program: str) -> dict[str, Any]:
    """CPU seconds, wall seconds and peak MiB from the start of a process to its first ten steps done
    (our first report), of `python -m workload` and of the plain program: medians of alternating
    fresh processes."""
    found: dict[str, list[list[float]]] = {side: [] for side in STARTS}
    for _ in range(3):
        for side, script in STARTS.items():
            with tempfile.TemporaryDirectory() as folder:
                own = {"GPUBOX_INPUT": str(mnist.folder()), "GPUBOX_OUTPUT": folder}
                began = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, "-c", script, program],
                    env={**os.environ, **own},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                line = done.stdout[done.stdout.rindex("first step") :].split()[2:]
                found[side].append([*map(float, line), time.perf_counter() - began])
    names = ("cpu_seconds", "peak_mib", "wall_seconds")
    figures: dict[str, Any] = {
        side: {
            name: round(statistics.median(row[place] for row in rows), 2)
            for place, name in enumerate(names)
        }
        for side, rows in found.items()
    }
    for name in ("cpu_seconds", "peak_mib"):
        ratio = figures["ours"][name] / figures["plain"][name]
        figures[f"{name}_to_plain"] = round(ratio, 3)
    return figures


def saving(cpu_ms: float) -> dict[str, float]:
    """CPU ms of one checkpoint of the convolutional net, and its share at the default interval."""
    from workload.loop import Loop
    from workload.saver import Saver

    arguments = defaults("cnn")
    loop = Loop(arguments, (28, 28, 1), 10, 1100.0)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "checkpoints"
        output.mkdir()
        saver = Saver(output, Path(folder), arguments.keep_last, arguments.keep_every)
        saver.start(best=None)
        costs, waits = [], []
        for step in range(1, 7):
            cpu, wall = time.process_time(), time.perf_counter()
            saver.save(step, loop.snapshot(), {"step": step, "best": None})
            waits.append(time.perf_counter() - wall)
            saver.wait()
            costs.append(time.process_time() - cpu)
        saver.close()
    cost = 1e3 * statistics.median(costs)
    share = cost / (arguments.save_every * cpu_ms)
    return {
        "cpu_ms": round(cost, 1),
        "loop_waits_ms": round(1e3 * statistics.median(waits), 1),
        "share": round(share, 5),
    }


def measure(quick: bool) -> dict[str, Any]:
    """Everything that this bench has to say."""
    from workload import device, results

    threads = device.cores()
    device.open_device("cpu", threads, 2, "off")  # determinism would slow the others down
    found: dict[str, Any] = {program: compare(program, quick) for program in STEPS}
    found["loading"] = loading()
    found["starting"] = {program: starting(program) for program in STEPS}
    found["saving"] = saving(found["cnn"]["ours"]["cpu_ms"])
    found["machine"] = {"processor": device.cpu_name(), "cores": threads, **results.versions()}
    found["peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return found


def targeted(found: dict[str, Any]) -> dict[str, float]:
    """The figures that have targets."""
    return {
        "train.cnn.ratio_to_plain": found["cnn"]["ratio_to_plain_cpu"],
        "train.bp.ratio_to_plain": found["bp"]["ratio_to_plain_cpu"],
        **{
            f"train.start.{program}.{name}": found["starting"][program][name]
            for program in STEPS
            for name in ("cpu_seconds_to_plain", "peak_mib_to_plain")
        },
        "train.load_seconds": found["loading"]["seconds"],
        "train.load_peak_mib": found["loading"]["peak_mib"],
        "train.save_share": found["saving"]["share"],
    }


def show(found: dict[str, Any]) -> None:
    """The figures as a table."""
    for program in STEPS:
        print(f"{program:>8}   CPU ms a step   wall ms   rate as a multiple (CPU, wall)")
        each = found[program]
        for side in ("plain", "keras", "ours"):
            ms = each[side]
            ratio = "1"
            if side != "ours":
                ratio = f"ours is {each[f'ratio_to_{side}_cpu']}, {each[f'ratio_to_{side}_wall']}"
            print(f"{side:>8} {ms['cpu_ms']:15.2f} {ms['wall_ms']:9.2f}   {ratio}")
    for program, each in found["starting"].items():
        print(f"{program:>8} to the first report: {each}")
    print(f"loading: {found['loading']}\nsaving:  {found['saving']}\n{found['machine']}")


def main() -> int:
    """Measures, prints, and with --check exits 1 where a target is missed."""
    parser = argparse.ArgumentParser("bench.train", description=__doc__)
    for flag in ("--quick", "--json", "--check"):
        parser.add_argument(flag, action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.quick)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)
    missed = targets.shortfalls(targeted(found)) if arguments.check else []
    for text in missed:
        print(f"falls short: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
