"""Several GPUs or several workers: TensorFlow's own strategies, the same batch and data order."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from workload.errors import WorkerLost, WorkloadError

if TYPE_CHECKING:
    from workload.loop import Loop

HALF = 1 << 16
STEPS_PER_CALL = 10  # with several workers; all must make calls of equal length


class Team:
    """The strategy, and this process's place in it. One worker with one device has none."""

    def __init__(self, strategy: Any = None, chief: bool = True) -> None:
        self.strategy, self.chief = strategy, chief

    @property
    def many(self) -> bool:
        """Whether other processes take part."""
        return bool(self.strategy) and self.strategy.extended._in_multi_worker_mode()

    def same_everywhere(self, loop: Loop, step: int) -> int:
        """Gives every worker the chief's variables; returns the chief's step.

        Only the chief has read a checkpoint. Each worker puts in what it has times 1 for the
        chief and 0 for the others, and takes the sum.
        """
        if not self.many:
            return step
        import tensorflow as tf

        mine = 1.0 if self.chief else 0.0

        @tf.function(autograph=False)
        def shared(values: dict[str, Any]) -> Any:
            context = tf.distribute.get_replica_context()
            share = mine / self.local_replicas()
            parts = {name: value * share for name, value in values.items()}
            return context.all_reduce(tf.distribute.ReduceOp.SUM, parts)

        values = {name: tf.constant(value) for name, value in loop.snapshot().items()}
        values["step"] = tf.constant(divmod(step, HALF), tf.float32)  # exact in two halves
        with missing_in_words():
            found = self.strategy.run(shared, args=(values,))
        first = {n: self.strategy.experimental_local_results(v)[0] for n, v in found.items()}
        high, low = (round(float(half)) for half in first.pop("step"))
        loop.restore({name: np.asarray(value) for name, value in first.items()})
        return high * HALF + low

    def local_replicas(self) -> int:
        """Replicas in this process."""
        return len(self.strategy.extended.worker_devices)


def team(arguments: argparse.Namespace, gpus: int) -> Team:
    """The team that --strategy, TF_CONFIG and the number of GPUs ask for.

    TF_CONFIG is set by the kit: {"cluster": {"worker": ["host:port", …]}, "task": …}.
    """
    workers, index = cluster(os.environ)
    choice = arguments.strategy
    if choice == "auto":
        choice = "workers" if workers > 1 else "mirrored" if gpus > 1 else "one"
    if choice == "one":
        return Team()
    import tensorflow as tf

    if choice == "workers":
        if not workers:
            raise WorkloadError("--strategy workers needs TF_CONFIG, which names the workers")
        with missing_in_words():
            made = Team(tf.distribute.MultiWorkerMirroredStrategy(), chief=index == 0)
    else:
        made = Team(tf.distribute.MirroredStrategy())
    replicas = made.strategy.num_replicas_in_sync
    if arguments.batch % replicas:
        raise WorkloadError(
            f"--batch {arguments.batch} can't be shared equally by {replicas} devices; "
            f"take a multiple of {replicas}"
        )
    return made


@contextlib.contextmanager
def missing_in_words() -> Iterator[None]:
    """Turns what TensorFlow raises where the workers did not come together into one line."""
    import tensorflow as tf

    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        raise WorkerLost(
            "another worker can't be reached from here, or ended at the start (TensorFlow says above "
            "which); start all again"
        ) from error


def cluster(environment: Any) -> tuple[int, int]:
    """(number of workers, this one's index) from TF_CONFIG; (0, 0) where there is none."""
    text = environment.get("TF_CONFIG")
    if not text:
        return 0, 0
    try:
        config = json.loads(text)
        return len(config["cluster"]["worker"]), int(config["task"]["index"])
    except (ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f"TF_CONFIG can't be read ({error}): {text[:200]}") from error
