"""Saves in the background, scratch first, then the output: the loop never waits for a disk."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

from workload import checkpoint

Snapshot = tuple[int, dict[str, np.ndarray], dict[str, Any]]


class Saver:
    """One background thread that publishes snapshots in order.

    Where a disk is slower than the interval, a snapshot that still waits gives way to the next,
    unless it is the best by validation. The first OSError ends the thread and is in `problem`.
    """

    def __init__(self, checkpoints: Path, scratch: Path, keep_last: int, keep_every: int) -> None:
        self.checkpoints = checkpoints
        self.keep_last, self.keep_every = keep_last, keep_every
        self.problem: OSError | None = None
        self.published: int | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="save-", dir=scratch)
        self._changed = threading.Condition()
        self._waiting: Snapshot | None = None
        self._busy = self._closed = False
        self._whole: set[int] = set()
        self._best: int | None = None
        self._thread = threading.Thread(target=self._run, name="saver", daemon=True)

    def start(self, best: int | None, published: int | None = None) -> None:
        """Begins. best, published: the steps of the best and the newest checkpoint so far."""
        checkpoint.sweep(self.checkpoints)
        self._best, self.published = best, published
        self._thread.start()

    def save(self, step: int, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Hands a snapshot over; returns at once, or when the best one that waits is taken."""
        with self._changed:
            self._changed.wait_for(lambda: self.problem or not _is_best(self._waiting))
            self._waiting = (step, tensors, meta)
            self._changed.notify_all()

    def wait(self) -> None:
        """Returns when everything that was handed over stands in the output; raises OSError."""
        with self._changed:
            self._changed.wait_for(lambda: self.problem or not (self._waiting or self._busy))
        if self.problem:
            raise self.problem

    def close(self) -> None:
        """Ends the thread after what it is doing now, and removes the scratch folder."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._scratch.cleanup()

    def _run(self) -> None:
        try:
            self._look()
            while snapshot := self._next():
                self._publish(*snapshot)
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
        except OSError as error:
            with self._changed:
                self.problem = error
                self._changed.notify_all()

    def _next(self) -> Snapshot | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            snapshot, self._waiting, self._busy = self._waiting, None, True
            self._changed.notify_all()
            return snapshot

    def _look(self) -> None:
        """Learns which of the checkpoints from before are whole: only those are ever removed."""
        for step in checkpoint.steps(self.checkpoints):
            if not checkpoint.damage(self.checkpoints / checkpoint.folder_name(step)):
                self._whole.add(step)

    def _publish(self, step: int, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        scratch = Path(self._scratch.name) / checkpoint.folder_name(step)
        try:
            checkpoint.write(scratch, tensors, meta)
            _, said = checkpoint.publish(scratch, self.checkpoints)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if said:
            print(said, file=sys.stderr, flush=True)
        self._whole.add(step)
        self.published = step
        if _is_best((step, tensors, meta)):
            self._best = step
            name = checkpoint.folder_name(step)
            checkpoint.write_atomically(self.checkpoints / "best", name + "\n")
        self._rotate()

    def _rotate(self) -> None:
        found = sorted(self._whole)
        plan = checkpoint.rotation(found, self._best, self.keep_last, self.keep_every)
        for step, reason in plan:
            if reason.startswith("remove"):
                folder = self.checkpoints / checkpoint.folder_name(step)
                if folder.is_dir():
                    checkpoint.remove(folder)
                self._whole.discard(step)


def _is_best(snapshot: Snapshot | None) -> bool:
    if snapshot is None:
        return False
    step, _, meta = snapshot
    return bool(meta.get("best")) and meta["best"]["step"] == step
