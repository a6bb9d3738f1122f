"""The recipe: look for a checkpoint, load the data, train in compiled calls, save, measure, end.

The same command starts a run and resumes it. Read `train` from top to bottom; what a program of
your own must do to fit the kit is the same, and is written in docs/workload.md.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workload import checkpoint, data, device, evaluate, flags, order, results
from workload.errors import FINISHED, ChangedArguments, Interrupted, NotFinite
from workload.folders import Folders, folders
from workload.progress import Metrics, Progress
from workload.saver import Saver

if TYPE_CHECKING:
    from workload.board import Board
    from workload.feed import Resident, Streamed
    from workload.loop import Loop

FIRST_CALL_STEPS = 10  # of the call that also compiles; later ones are sized by the rate


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

    def _note(self, number: int, _: Any) -> None:
        self.signal = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)

    def check(self) -> None:
        """Raises Interrupted if a signal came."""
        if self.signal:
            raise Interrupted(f"stopped by {self.signal}; the same command resumes")


def train(arguments: argparse.Namespace) -> int:
    """Trains up to `arguments.steps`, from the newest checkpoint if there is one; exit code."""
    stop = Stop()
    stop.install()
    where = folders()
    where.checkpoints.mkdir(parents=True, exist_ok=True)
    found, meta = resume_point(where, arguments)
    if is_finished(where, arguments, meta):
        print(f"already finished: step {meta['step']}, see {where.output / 'result.json'}")
        return FINISHED
    progress = Progress(where.output, arguments.model, arguments.steps)
    progress.start()
    run = prepare(arguments, where, progress, found, meta)
    try:
        stop.check()
        while run.step < arguments.steps:
            advance(run)
            report_and_save(run, stop)
        finish(run, stop)
    except Interrupted as reason:
        save_before_end(run)
        raise Interrupted(f"{reason} from step {run.step}") from reason
    except OSError as error:
        raise Interrupted(disk_trouble(run, error)) from error
    finally:
        run.saver.close()
        run.board.close()
    return FINISHED


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
    dataset = data.load(where.input, arguments.classes, arguments.image_size, scratch=where.scratch)
    rows = split(arguments, len(dataset.train.labels))
    progress.say(data.summary(dataset))
    arguments.intra_threads = arguments.intra_threads or device.cores()
    arguments.inter_threads = arguments.inter_threads or 2
    used = device.open_device(
        arguments.device,
        arguments.intra_threads,
        arguments.inter_threads,
        arguments.deterministic,
        arguments.xla,
    )
    progress.phase("starting", device=used["kind"])
    progress.say(f"training on {used['kind'].upper()}: {', '.join(used['names'])}")
    from workload.board import Board
    from workload.feed import feed
    from workload.loop import Loop

    loop = Loop(arguments, dataset.image_shape, dataset.classes, len(rows[0]) / arguments.batch)
    step = 0
    if found:
        tensors, meta = checkpoint.read(found)
        loop.restore(tensors)
        step = meta["step"]
        progress.say(f"resumed from {found.name}")
        progress.state.update(step=step, checkpoint_step=step)
    metrics = Metrics(where.output / "metrics.jsonl", step)
    saver = Saver(where.checkpoints, where.scratch, arguments.keep_last, arguments.keep_every)
    best = meta.get("best")
    saver.start(best["step"] if best else None)
    run = Run(
        arguments,
        where,
        progress,
        dataset,
        rows,
        used,
        loop,
        feed(dataset.train, arguments.resident_mib),
        metrics,
        Board(where.output / "tensorboard", step),
        saver,
        step=step,
        best=best,
        saved_step=step if found else -1,
    )
    run.trained_seconds = metrics.rows[-1]["seconds"] if metrics.rows else 0.0
    return run


def split(arguments: argparse.Namespace, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, validation rows): a share is drawn, a count is taken from the front."""
    if arguments.validation < 1:
        rows = order.hold_out_share(count, arguments.validation, arguments.split_seed)
    else:
        rows = order.hold_out_first(count, int(arguments.validation))
    if len(rows[0]) < 1:
        raise data.DataError(
            f"--validation {arguments.validation:g} leaves none of {count} images for training"
        )
    return rows


def advance(run: Run) -> None:
    """One call of the compiled loop: up to the next thing to do, and about call_seconds long."""
    arguments, rate = run.arguments, run.progress.state["steps_per_second"]
    limit = max(1, int(rate * arguments.call_seconds)) if rate else FIRST_CALL_STEPS
    steps = min(next_stop(run.step, arguments) - run.step, limit)
    places = order.batches(arguments.seed, len(run.rows[0]), arguments.batch, run.step, steps)
    began = time.perf_counter()
    loss, finite = run.loop.train(*run.feed(run.rows[0][places]), np.int32(run.step))
    loss, finite = float(loss), bool(finite)
    seconds = time.perf_counter() - began
    if not finite or not np.isfinite(loss):
        raise NotFinite(not_finite(run, steps))
    run.step += steps
    run.trained_seconds += seconds
    run.progress.advance(run.step, steps, seconds, loss=loss, checkpoint_step=run.saver.published)


def next_stop(step: int, arguments: argparse.Namespace) -> int:
    """The next step at which there is something to measure or to save."""
    periods = (arguments.log_every, arguments.validate_every, arguments.save_every)
    return min([arguments.steps] + [step - step % n + n for n in periods if n])


def report_and_save(run: Run, stop: Stop) -> None:
    """After a call: measures and saves what is due at this step, and looks for signals."""
    arguments, step = run.arguments, run.step
    if run.saver.problem:
        raise run.saver.problem
    last = step >= arguments.steps
    validate = last or step % arguments.validate_every == 0
    improved = False
    if validate or step % arguments.log_every == 0:
        improved = measure(run, validate)
        run.progress.show()
    minutes = (time.monotonic() - run.saved_at) / 60
    due = bool(arguments.save_every) and step % arguments.save_every == 0
    late = bool(arguments.save_minutes) and minutes >= arguments.save_minutes
    if last or improved or due or late:
        save(run)
    stop.check()


def measure(run: Run, validate: bool) -> bool:
    """Measures accuracy, on the batch that comes next and, if asked, on the validation images.

    Returns whether the validation accuracy is the best so far.
    """
    arguments, improved = run.arguments, False
    figures: dict[str, Any] = {"loss": run.progress.state["loss"]}
    rows = order.batches(arguments.seed, len(run.rows[0]), arguments.batch, run.step, 1)[0]
    figures["accuracy"] = accuracy(run, run.rows[0][rows])
    if validate and len(run.rows[1]):
        value = figures["validation_accuracy"] = accuracy(run, run.rows[1])
        improved = run.best is None or value > run.best["accuracy"]
        if improved:
            run.best = {"step": run.step, "accuracy": value}
    run.progress.state.update(figures)
    rate = run.progress.state["steps_per_second"]
    timing = {"seconds": round(run.trained_seconds, 3), "steps_per_second": rate}
    run.board.scalars(run.metrics.add(run.step, **figures, **timing))
    return improved


def accuracy(run: Run, rows: np.ndarray) -> float:
    """The share of these rows of the training file that the program gets right."""
    part = run.dataset.train
    predicted = evaluate.predict(run.loop, part.images, rows)
    return float(np.mean(predicted == part.labels[rows]))


def save(run: Run) -> None:
    """Hands the state to the background thread."""
    arguments = run.arguments
    meta = {
        "model": arguments.model,
        "step": run.step,
        "arguments": flags.recipe(arguments),
        "classes": run.dataset.classes,
        "image_shape": list(run.dataset.image_shape),
        "best": run.best,
        "threads": {
            "intra_threads": arguments.intra_threads,
            "inter_threads": arguments.inter_threads,
        },
        "versions": results.versions(),
    }
    run.saver.save(run.step, run.loop.snapshot(), meta)
    run.saved_at, run.saved_step = time.monotonic(), run.step


def save_before_end(run: Run) -> None:
    """Saves where the run stands and waits until it is published, or raises Interrupted."""
    try:
        run.progress.phase("saving")
        if run.saved_step < run.step:
            save(run)
        run.saver.wait()
    except OSError as error:
        raise Interrupted(disk_trouble(run, error)) from error


def disk_trouble(run: Run, error: OSError) -> str:
    """One line for a disk that did not take what it was given."""
    last = newest_saved(run)
    return (
        f"{error.filename or run.where.output}: {error.strerror or error}; "
        f"the checkpoint of {last} stands; free some space, and the same command resumes"
    )


def newest_saved(run: Run) -> str:
    """The newest published checkpoint, in words."""
    found = checkpoint.steps(run.where.checkpoints)
    return f"step {found[-1]}" if found else "no step"


def not_finite(run: Run, steps: int) -> str:
    """One line for a loss that is no number any more, after what was good is published."""
    with contextlib.suppress(OSError):
        run.saver.wait()
    return (
        f"the loss became NaN or infinite between steps {run.step} and {run.step + steps}; nothing "
        f"of it was saved, the last good checkpoint is that of {newest_saved(run)}; "
        "lower --learning-rate, or look for broken values in the data"
    )


def finish(run: Run, stop: Stop) -> None:
    """Waits for the last checkpoint, measures on the test images, writes the results."""
    run.progress.phase("saving")
    run.saver.wait()
    run.progress.phase("evaluating", checkpoint_step=run.step)
    test = run.dataset.test
    predicted = evaluate.predict(run.loop, test.images, stop=stop)
    found = results.result(run, predicted)
    run.board.misread(run.dataset, predicted, run.step)
    checkpoint.write_atomically(run.where.output / "result.json", results.text(found))
    run.progress.phase("done", eta_seconds=0.0)
    run.progress.say(results.line(found))
