"""Accuracy on MNIST's test images over three seeds: the figures that the programs must hold.

`python -m bench.accuracy [--quick] [--json] [--check] [--run NAME …] [--seeds 1 2 3] [--save]`.
NAME is bp.30000, cnn.2000 or cnn.20000 (the last takes a quarter of an hour of CPU a seed).
--save adds the runs, with date and versions, to bench/results/accuracy.json.
--plain trains the same net as a plain TensorFlow-1 program instead, on as many images and for as
many steps, with draws of its own: what the net itself reaches, whoever trains it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import mnist, targets

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
RUNS = ("bp.30000", "cnn.2000", "cnn.20000")


def train(name: str, seed: int) -> dict[str, Any]:
    """Runs one training by the command that users give; returns what is worth recording."""
    program, steps = name.split(".")
    with tempfile.TemporaryDirectory(prefix="accuracy-") as folder:
        environment = {**os.environ, "GPUBOX_INPUT": str(mnist.folder()), "GPUBOX_OUTPUT": folder}
        command = [sys.executable, "-m", "workload", program, "--steps", steps]
        command += ["--seed", str(seed), "--no-report"]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return record(name, seed, json.loads((Path(folder) / "result.json").read_text()))


def train_plain(name: str, seed: int) -> dict[str, Any]:
    """The same training by bench.plain in this process; what is worth recording of it."""
    from bench.plain import Plain
    from bench.train import defaults
    from workload import data, device, results, run

    program, steps = name.split(".")
    dataset, arguments = data.load(mnist.folder()), defaults(program)
    rows, held = run.split(arguments, len(dataset.train.labels))
    images, labels = dataset.train.images, dataset.train.labels
    began = time.perf_counter()
    plain = Plain(program, images[rows], labels[rows], device.cores(), seed)
    plain.steps(int(steps))
    return {
        "run": f"plain.{name}",
        "seed": seed,
        "test_accuracy": plain.accuracy(dataset.test.images, dataset.test.labels),
        "validation_accuracy": plain.accuracy(images[held], labels[held]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "training_seconds": round(time.perf_counter() - began),
        "device": device.cpu_name(),
        "threads": [device.cores()] * 2,
        "versions": results.versions(),
    }


def record(name: str, seed: int, result: dict[str, Any]) -> dict[str, Any]:
    """The line of bench/results for a result.json."""
    finished = datetime.datetime.fromtimestamp(result["finished"], datetime.timezone.utc)
    return {
        "run": name,
        "seed": seed,
        "test_accuracy": result["test_accuracy"],
        "validation_accuracy": result["validation_accuracy"],
        "date": finished.strftime("%Y-%m-%d"),
        "training_seconds": round(result["training_seconds"]),
        "device": result["device"]["names"][0],
        "threads": [result["device"]["intra_threads"], result["device"]["inter_threads"]],
        "versions": result["versions"],
        "state_sha256": result["state_sha256"],
    }


def worst(records: list[dict[str, Any]]) -> dict[str, float]:
    """The lowest test accuracy of each run's seeds, under the names of the targets."""
    found: dict[str, float] = {}
    for each in records:
        name = f"accuracy.{each['run']}"
        found[name] = min(each["test_accuracy"], found.get(name, 1.0))
    return found


def save(records: list[dict[str, Any]]) -> None:
    """Merges the records into the results file; a run and seed that is there is replaced."""
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    merged = {(each["run"], each["seed"]): each for each in [*before, *records]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([merged[key] for key in sorted(merged)], indent=1) + "\n")


def main() -> int:
    """Trains, prints, and with --check exits 1 where a target is missed."""
    parser = argparse.ArgumentParser("bench.accuracy", description=__doc__)
    for flag in ("--quick", "--json", "--check", "--save", "--plain"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--run", nargs="+", choices=RUNS, default=["bp.30000", "cnn.2000"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parser.parse_args()
    seeds = arguments.seeds[:1] if arguments.quick else arguments.seeds
    records = []
    for name in arguments.run:
        for seed in seeds:
            records.append(train_plain(name, seed) if arguments.plain else train(name, seed))
            if not arguments.json:
                accuracy = 100 * records[-1]["test_accuracy"]
                print(
                    f"{records[-1]['run']} seed {seed}: {accuracy:.2f} % of the test images",
                    flush=True,
                )
            if arguments.save:
                save(records)
    found = worst(records)
    if arguments.json:
        print(json.dumps({"records": records, "worst": found}, indent=1))
    missed = targets.shortfalls(found) if arguments.check else []
    for text in missed:
        print(f"falls short: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
