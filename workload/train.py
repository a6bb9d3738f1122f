"""The recipe: look for a checkpoint, load the data, train in compiled calls, save, measure, end.

The same command starts a run and resumes it. Read `train` from top to bottom; what a program of
your own must do to fit the kit is the same, and is written in docs/workload.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from workload import checkpoint, device, evaluate, flags, order, report, results
from workload.errors import FINISHED, Interrupted, NotFinite, OutOfMemory, WorkerLost
from workload.folders import claim, folders
from workload.progress import Progress
from workload.run import Run, Stop, is_finished, prepare, resume_point
from workload.workers import STEPS_PER_CALL, cluster

FIRST_CALL_STEPS = 10  # of the call that also compiles; later ones are sized by the rate


def train(arguments: argparse.Namespace) -> int:
    """Trains up to `arguments.steps`, from the newest checkpoint if there is one; exit code."""
    stop = Stop()
    stop.install()
    where = folders()
    where.checkpoints.mkdir(parents=True, exist_ok=True)
    claim(where.output, cluster(os.environ)[1])
    found, meta = resume_point(where, arguments)
    if is_finished(where, arguments, meta):
        print(f"already finished: step {meta['step']}, see {where.output / 'result.json'}")
        return FINISHED
    progress = Progress(where.output, arguments.model, arguments.steps)
    progress.start()
    run = prepare(arguments, where, progress, found, meta)
    stop.take_back()
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


def advance(run: Run) -> None:
    """One call of the compiled loop: up to the next thing to do, and about call_seconds long."""
    rows = run.feed.expected(run.step)
    if rows is None:
        rows = rows_of_call(run, run.step)
    steps = len(rows)
    began = time.perf_counter()
    call = *run.feed(rows), np.int32(run.step)
    if run.feed.reads_ahead and run.step + steps < run.arguments.steps:
        run.feed.ahead(run.step + steps, rows_of_call(run, run.step + steps))
    if run.progress.state["first_step_seconds"] is None:
        run.board.graph(run.loop.train.get_concrete_function(*call))
    with failures_in_words(run):
        loss, finite = run.loop.train(*call)
        loss, finite = float(loss), bool(finite)
    seconds = time.perf_counter() - began
    if not finite or not np.isfinite(loss):
        raise NotFinite(not_finite(run, steps))
    run.step += steps
    run.trained_seconds += seconds
    run.progress.advance(run.step, steps, seconds, loss=loss, checkpoint_step=run.saver.published)


def rows_of_call(run: Run, step: int) -> np.ndarray:
    """The rows, of shape (steps, batch), that the call which begins at `step` trains on."""
    arguments, rate = run.arguments, run.progress.state["steps_per_second"]
    limit = max(1, int(rate * arguments.call_seconds)) if rate else FIRST_CALL_STEPS
    if run.team.many:
        limit = STEPS_PER_CALL
    steps = min(next_stop(step, arguments) - step, limit)
    return run.rows[0][
        order.batches(arguments.seed, len(run.rows[0]), arguments.batch, step, steps)
    ]


@contextlib.contextmanager
def failures_in_words(run: Run) -> Iterator[None]:
    """Turns what TensorFlow raises for no fault of the program into one line and a code."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        held = "; ".join(device.other_processes()) or "no other process holds any"
        raise OutOfMemory(
            f"out of memory at step {run.step} ({held}); lower --batch or --resident-mib"
        ) from error
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        if not run.team.many:
            raise
        run.saver.close()  # what was handed over is whole; where we stand now is not
        raise WorkerLost(
            f"another worker went away at step {run.step}; start all again, and they resume from "
            f"{newest_saved(run)}"
        ) from error


def next_stop(step: int, arguments: argparse.Namespace) -> int:
    """The next step at which there is something to measure or to save."""
    periods = (arguments.log_every, arguments.validate_every, arguments.save_every)
    last: int = arguments.steps
    stops: list[int] = [step - step % n + n for n in periods if n]
    return min([last, *stops])


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
    run.saved_at, run.saved_step = time.monotonic(), run.step
    if not run.team.chief:
        return
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
    """Waits for the last checkpoint, measures on the test images, writes the results.

    result.json comes last: where it stands, the run is finished.
    """
    from workload.board import png

    run.progress.phase("saving")
    run.saver.wait()
    run.progress.phase("evaluating", checkpoint_step=run.step)
    test = run.dataset.test
    predicted = evaluate.predict(run.loop, test.images, stop=stop)
    found = results.result(run, predicted)
    run.board.misread(run.dataset, predicted, run.step)
    if run.arguments.report:
        shown = [png(test, entry["index"]) for entry in found["misread"]]
        page = report.page(found, run.metrics.rows, shown)
        checkpoint.write_atomically(run.where.output / "report.html", page)
    checkpoint.write_atomically(run.where.output / "result.json", results.text(found))
    run.progress.phase("done", eta_seconds=0.0)
    run.progress.say(results.line(found))
