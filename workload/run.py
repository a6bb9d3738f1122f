"""One start of a run: where it stands, what it works with, and how it is put together."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workload import checkpoint, data, device, flags, order, results
from workload.errors import ChangedArguments, DataError, Interrupted
from workload.folders import Folders
from workload.progress import Metrics, Progress
from workload.saver import Saver
from workload.workers import Team, team

if TYPE_CHECKING:
    from workload.board import Board
    from workload.feed import Resident, Streamed
    from workload.loop import Loop


@dataclass
class Run:
    """What one start of a run works with."""

    arguments: argparse.Namespace
    where: Folders
    progress: Progress
    dataset: data.Dataset
    rows: tuple[np.ndarray, np.ndarray]  # of training and of validation
    device: dict[str, Any]
    loop: Loop
    feed: Resident | Streamed
    metrics: Metrics
    board: Board
    saver: Saver
    team: Team
    step: int = 0
    best: dict[str, Any] | None = None
    trained_seconds: float = 0.0
    saved_at: float = field(default_factory=time.monotonic)
    saved_step: int = -1


class Stop:
    """Remembers that SIGTERM or SIGINT came; a second one ends the process at once."""

    signal: str = ""

    def install(self) -> None:
        """Takes both signals over, and gives each back after its first use."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def take_back(self) -> None:
        """Takes them over again from TensorFlow, whose strategy for several workers catches SIGTERM."""
        if not self.signal:
            self.install()

    def _note(self, number: int, _: Any) -> None:
        self.signal = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)

    def check(self) -> None:
        """Raises Interrupted if a signal came."""
        if self.signal:
            raise Interrupted(f"stopped by {self.signal}; the same command resumes")


def resume_point(
    where: Folders, arguments: argparse.Namespace
) -> tuple[Path | None, dict[str, Any]]:
    """The checkpoint to go on from and its meta (None and {} for a new run).

    Says which damaged ones were passed over; raises ChangedArguments if the recipe differs.
    """
    found, passed = checkpoint.newest(where.checkpoints)
    for sentence in passed:
        print(f"warning: {sentence}", file=sys.stderr, flush=True)
    if found is None:
        return None, {}
    meta = checkpoint.read_meta(found)
    now = flags.recipe(arguments)
    differing = flags.changes(meta["arguments"], now)
    if meta["model"] != arguments.model:
        differing = [f"the model was {meta['model']}, is {arguments.model}"]
    if differing:
        raise ChangedArguments(
            f"{found}: made with other arguments: {'; '.join(differing)}; "
            "use the same ones, or another output folder"
        )
    for name in ("intra_threads", "inter_threads"):
        saved, asked = meta["threads"][name], getattr(arguments, name)
        if asked and asked != saved:
            print(
                f"warning: --{name.replace('_', '-')} was {saved}, is {asked}: the results "
                "will differ in their last bits",
                file=sys.stderr,
            )
        setattr(arguments, name, asked or saved)
    return found, meta


def is_finished(where: Folders, arguments: argparse.Namespace, meta: dict[str, Any]) -> bool:
    """Whether the run got to its last step and wrote its result."""
    result = results.read(where.output)
    return bool(meta) and meta["step"] >= arguments.steps and result.get("step") == meta["step"]


def prepare(
    arguments: argparse.Namespace,
    where: Folders,
    progress: Progress,
    found: Path | None,
    meta: dict[str, Any],
) -> Run:
    """Loads data, device, program and checkpoint; everything that can be wrong is found here."""
    early = None if data.is_pictures(where.input) else load_data(arguments, where)
    used = open_device(arguments)
    progress.phase("starting", device=used["kind"])
    group = team(arguments, used["count"] if used["kind"] == "gpu" else 0)
    dataset = early or load_data(arguments, where)  # pictures are decoded by TensorFlow
    rows = split(arguments, len(dataset.train.labels))
    progress.say(data.summary(dataset))
    progress.say(f"training on {used['kind'].upper()}: {', '.join(used['names'])}")
    same_kind(dataset, meta, where)
    loop = load_program(arguments, dataset, len(rows[0]), group, found)
    if found:
        progress.say(f"resumed from {found.name}")
    step = group.same_everywhere(loop, meta.get("step", 0))
    progress.state.update(step=step, checkpoint_step=step or None)
    from workload.board import Board
    from workload.feed import feed

    images, board = feed(dataset.train, arguments.resident_mib), Board(where.board, step)
    metrics, saver = (
        Metrics(where.output / "metrics.jsonl", step),
        start_saver(arguments, where, meta),
    )
    run = Run(
        arguments, where, progress, dataset, rows, used, loop, images, metrics, board, saver, group
    )
    run.step, run.best, run.saved_step = step, meta.get("best"), step if found else -1
    run.trained_seconds = metrics.rows[-1]["seconds"] if metrics.rows else 0.0
    return run


def load_program(
    arguments: argparse.Namespace, dataset: data.Dataset, rows: int, group: Team, found: Path | None
) -> Loop:
    """The program's variables as the checkpoint `found` has them; rows: those trained on."""
    from workload.loop import Loop

    epoch = rows / arguments.batch
    loop = Loop(arguments, dataset.image_shape, dataset.classes, epoch, group.strategy)
    if found:
        loop.restore(checkpoint.read(found)[0])
    return loop


def start_saver(arguments: argparse.Namespace, where: Folders, meta: dict[str, Any]) -> Saver:
    """The background thread that saves; it knows the newest and the best checkpoint so far."""
    saver = Saver(where.checkpoints, where.scratch, arguments.keep_last, arguments.keep_every)
    best = meta.get("best")
    saver.start(best["step"] if best else None, meta.get("step"))
    return saver


def open_device(arguments: argparse.Namespace) -> dict[str, Any]:
    """Opens the device that the arguments ask for, with their threads made definite."""
    arguments.intra_threads = arguments.intra_threads or device.cores()
    arguments.inter_threads = arguments.inter_threads or 2
    return device.open_device(
        arguments.device,
        arguments.intra_threads,
        arguments.inter_threads,
        arguments.deterministic,
        arguments.xla,
    )


def same_kind(dataset: data.Dataset, meta: dict[str, Any], where: Folders) -> None:
    """Raises ChangedArguments where the checkpoint was trained on images of another kind."""
    now = list(dataset.image_shape), dataset.classes
    if meta and (meta["image_shape"], meta["classes"]) != now:
        raise ChangedArguments(
            f"{where.input}: images of {now[0]} in {now[1]} classes, but {where.checkpoints} was "
            f"trained on {meta['image_shape']} in {meta['classes']}; take that data set, or "
            "another output folder"
        )


def load_data(arguments: argparse.Namespace, where: Folders) -> data.Dataset:
    """The staged data set as the arguments want it."""
    return data.load(where.input, arguments.classes, arguments.image_size, where.scratch)


def split(arguments: argparse.Namespace, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, validation rows): a share is drawn, a count is taken from the front."""
    if arguments.validation < 1:
        rows = order.hold_out_share(count, arguments.validation, arguments.split_seed)
    else:
        rows = order.hold_out_first(count, int(arguments.validation))
    if len(rows[0]) < 1:
        raise DataError(
            f"--validation {arguments.validation:g} leaves none of {count} images for training"
        )
    return rows
