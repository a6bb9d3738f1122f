"""What a run says while it goes: the progress line, progress.json and metrics.jsonl."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from workload import checkpoint

SCHEMA = 1
HEARTBEAT_SECONDS = 5.0
RATE_MEMORY = 0.8  # weight of the past in the smoothed rate


class Progress:
    """Keeps the figures of one start of a run and shows them.

    progress.json is replaced atomically, at most every 5 s except at a change of phase; while
    TensorFlow starts (kernels may compile for many minutes) a thread keeps it fresh.
    """

    def __init__(self, output: Path, model: str, steps: int, stream: TextIO = sys.stdout) -> None:
        self.output, self.stream = output, stream
        self.began = time.time()
        self.state: dict[str, Any] = {
            "schema": SCHEMA,
            "model": model,
            "phase": "starting",
            "step": 0,
            "steps": steps,
            "loss": None,
            "accuracy": None,
            "validation_accuracy": None,
            "steps_per_second": None,
            "eta_seconds": None,
            "device": None,
            "checkpoint_step": None,
            "first_step_seconds": None,
            "started": self.began,
            "advanced": None,
            "time": self.began,
        }
        self._lock = threading.Lock()
        self._written = self._shown = 0.0
        self._line_open = False
        self._alive = threading.Event()

    def start(self) -> None:
        """Writes the first progress.json and keeps it fresh until the first step is done."""
        self.phase("starting")
        threading.Thread(target=self._keep_fresh, name="heartbeat", daemon=True).start()

    def phase(self, name: str, **figures: Any) -> None:
        """Enters a phase: starting, training, evaluating, saving, done."""
        self.state.update(phase=name, **figures)
        self._write()

    def advance(self, step: int, taken: int, seconds: float, **figures: Any) -> None:
        """`taken` more steps were done in `seconds`; the run stands at `step`."""
        now, state = time.time(), self.state
        if state["first_step_seconds"] is None:
            state["first_step_seconds"] = round(now - self.began, 3)
            self._alive.set()
        else:
            rate, past = taken / seconds, state["steps_per_second"]
            state["steps_per_second"] = (
                rate if past is None else RATE_MEMORY * past + (1 - RATE_MEMORY) * rate
            )
        rate = state["steps_per_second"]
        state["eta_seconds"] = round((state["steps"] - step) / rate, 1) if rate else None
        changed = state["phase"] != "training"
        state.update(step=step, phase="training", advanced=now, **figures)
        if changed or now - self._written >= HEARTBEAT_SECONDS:
            self._write()

    def show(self, every_seconds: float = 1.0) -> None:
        """Prints the progress line, in place on a terminal, at most once in `every_seconds`."""
        if time.monotonic() - self._shown < every_seconds:
            return
        self._shown = time.monotonic()
        text = line(self.state)
        if self.stream.isatty():
            print("\r\x1b[K" + text, end="", file=self.stream, flush=True)
            self._line_open = True
        else:
            print(text, file=self.stream, flush=True)

    def say(self, text: str) -> None:
        """Prints a line of its own."""
        if self._line_open:
            print(file=self.stream)
            self._line_open = False
        print(text, file=self.stream, flush=True)

    def _write(self) -> None:
        with self._lock:
            self.state["time"] = self._written = time.time()
            text = json.dumps(self.state, indent=1)
            checkpoint.write_atomically(self.output / "progress.json", text + "\n", sync=False)

    def _keep_fresh(self) -> None:
        while not self._alive.wait(HEARTBEAT_SECONDS):
            try:
                self._write()
            except OSError:
                return  # the main thread meets the same error and reports it


def line(state: dict[str, Any]) -> str:
    """The progress line for a progress.json, such as
    `step 1200/20000  loss 0.1234  accuracy 96.0 %  33.1 steps/s  9 min 28 s left`."""
    parts = [f"step {state['step']}/{state['steps']}"]
    if state["loss"] is not None:
        parts.append(f"loss {state['loss']:.4f}")
    if state["accuracy"] is not None:
        parts.append(f"accuracy {100 * state['accuracy']:.1f} %")
    if state["validation_accuracy"] is not None:
        parts.append(f"validation {100 * state['validation_accuracy']:.2f} %")
    if state["steps_per_second"]:
        parts.append(f"{state['steps_per_second']:.1f} steps/s")
    if state["eta_seconds"] is not None and state["step"] < state["steps"]:
        parts.append(f"{duration(state['eta_seconds'])} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """`9 min 28 s` for 568."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class Metrics:
    """metrics.jsonl: one line for each measured step, none twice, however often it was resumed."""

    def __init__(self, path: Path, resumed_at: int) -> None:
        self.path = path
        self.rows = [row for row in read_rows(path) if row["step"] <= resumed_at]
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        checkpoint.write_atomically(path, text)

    def add(self, step: int, **figures: Any) -> dict[str, Any]:
        """Appends a row and returns it."""
        row = {"step": step, "time": round(time.time(), 3), **figures}
        self.rows.append(row)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return row


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line that was cut by a kill is left out."""
    rows: list[dict[str, Any]] = []
    if path.exists():
        for text in path.read_text().splitlines():
            try:
                rows.append(json.loads(text))
            except ValueError:
                continue
    return rows
