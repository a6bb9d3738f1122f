"""What people see: the only importer of rich. Answers go to stdout, notices to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from deploy.errors import KitError
from deploy.plan.quantities import show_duration, show_size

PLAIN_EVERY = 10.0  # s between two plain lines about one thing, where there is no terminal
LAST_WORDS = 200  # lines of what failed
# ESC [ … letter, ESC ] … BEL, and backspace
SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x08")


def plain(text: object) -> str:
    """Text from elsewhere (names, logs) without what could drive the terminal.

    Colours and cursor movements (ECMA-48 control sequences) and backspaces, as progress bars
    print them, are left out; any other control character is shown as its number.
    """
    words = SEQUENCES.sub("", str(text).encode("utf-8", "backslashreplace").decode())
    return "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in words)


class Show:
    """Everything a verb says. With `machine` (--json) the answer is JSON and nothing else."""

    def __init__(self, machine: bool = False, debug: bool = False) -> None:
        self.machine = machine
        self.debug = debug
        self._warned: set[str] = set()
        self._notices = Console(stderr=True, highlight=False, soft_wrap=True)
        self._answers = Console(highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """An answer, or a line of it."""
        if self.machine:
            return
        self._answers.print(escape(plain(text)))

    def raw(self, text: str) -> None:
        """Text of ours for another program: as it is, on stdout."""
        sys.stdout.write(text)

    def note(self, text: str) -> None:
        """A notice beside the answer."""
        self._notices.print(escape(plain(text)), style="dim")

    def warn(self, text: str) -> None:
        """What should be known; the same sentence is said once in a command."""
        if text in self._warned:
            return
        self._warned.add(text)
        self._notices.print(escape(plain(text)), style="yellow")

    def step(self, text: str) -> None:
        """What is being done now."""
        self._notices.print(f"[cyan]›[/cyan] {escape(plain(text))}")

    def done(self, text: str) -> None:
        self._notices.print(f"[green]✓[/green] {escape(plain(text))}")

    def error(self, fault: KitError) -> None:
        """One red line, the hint under it."""
        self._notices.print(f"[bold red]error:[/bold red] {escape(plain(fault.message))}")
        if fault.hint:
            self._notices.print(f"  {escape(plain(fault.hint))}")

    def table(
        self,
        heads: Sequence[str],
        rows: Sequence[Sequence[object]],
        title: str = "",
        wide: bool = False,
    ) -> None:
        """A table that fits 80 columns (`wide`: 140); long cells fold."""
        if self.machine:
            return
        width, most = (140, 200) if wide else (80, 120)
        if self._answers.is_terminal:
            width = min(self._answers.width, most)
        self._answers.print(_table(heads, rows, title), width=width, soft_wrap=False)

    @contextmanager
    def live(self) -> Iterator[Callable[[Sequence[str], Sequence[Sequence[object]]], None]]:
        """Draws a table over the one before; where there is no terminal, one after the other."""
        if not self._answers.is_terminal:
            yield lambda heads, rows: self.table(heads, rows, wide=True)
            return
        with Live(console=self._answers, auto_refresh=False, screen=True) as screen:
            yield lambda heads, rows: screen.update(_table(heads, rows, ""), refresh=True)

    def json(self, value: Any) -> None:
        """The only thing on stdout with --json."""
        sys.stdout.write(json.dumps(value, indent=1, sort_keys=True, default=str) + "\n")
        sys.stdout.flush()

    def ask(self, question: str) -> bool:
        """Yes or no from a terminal; no where there is none."""
        if not sys.stdin.isatty():
            return False
        self._notices.print(escape(plain(question)))
        self._notices.print("Go on? [y/N] ", end="", markup=False)
        return input().strip().lower() in ("y", "yes")

    @contextmanager
    def progress(
        self, what: str, total: float | None, unit: str = "bytes", files: int = 0
    ) -> Iterator[Bar]:
        """A bar with rate and time left on a terminal; now and then a plain line elsewhere.

        Where there are `files`, it counts those as well.
        """
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}", markup=False),
            BarColumn(8 if files else 24),
        ]
        if unit == "bytes":
            columns += [DownloadColumn(binary_units=True), TransferSpeedColumn()]
        else:
            columns += [MofNCompleteColumn()]
        if files:
            columns += [TextColumn("{task.fields[files]}")]
        columns += [
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[detail]}", markup=False),
        ]
        quiet = self._no_bars()
        plainly = _every_while(time.monotonic(), self.note) if quiet else None
        with Progress(*columns, console=self._notices, transient=True, disable=quiet) as shown:
            task = shown.add_task(plain(what), total=total, detail="", files="")
            yield Bar(shown, task, plainly, unit, files, self._room_beside(what, files))

    @contextmanager
    def doing(self, what: str) -> Iterator[Callable[[str], None]]:
        """Something long that says much itself: one line with the time it takes.

        What the block tells stands at the line's end (elsewhere than on a terminal: in a plain line
        now and then); all of it is shown with --debug, and where the block fails.
        """
        self.step(what)
        began = time.monotonic()
        told: list[str] = []
        with self._one_line(began) as shown:

            def tell(line: str) -> None:
                told.append(line)
                if self.debug:
                    self.note(line)
                elif line.strip():
                    shown(line)

            try:
                yield tell
            except BaseException:
                for line in [] if self.debug else told[-LAST_WORDS:]:
                    self.note(line)
                raise
        self.note(f"{what}: {show_duration(time.monotonic() - began)}")

    @contextmanager
    def _one_line(self, began: float) -> Iterator[Callable[[str], None]]:
        """What is shown of a long action while it goes on: its time and its last line."""
        if self._no_bars():
            yield _every_while(began, self.note)
            return
        columns = [
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        ]
        with Progress(*columns, console=self._notices, transient=True) as shown:
            task = shown.add_task("", total=None)
            yield lambda line: shown.update(task, description=plain(line)[:60])

    def _room_beside(self, what: str, files: int) -> int:
        """Characters that a bar on one line leaves for what is being done now."""
        if not files:
            return 30
        beside = (
            f"{plain(what)} ━━━━━━━━ 1023.9/1023.9 MiB 100.0 MB/s {_counted(files, files)} 00:00 "
        )
        return max(1, min(40, self._notices.width - len(beside)))

    def _no_bars(self) -> bool:
        return not self._notices.is_terminal or bool(os.environ.get("GPUBOX_NO_PROGRESS"))


def _every_while(began: float, say: Callable[[str], None]) -> Callable[[str], None]:
    """Says a line that is told, with the time since `began`, when PLAIN_EVERY have passed."""
    last = began

    def told(line: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PLAIN_EVERY:
            last = now
            say(f"  {show_duration(now - began)}: {line[:60]}")

    return told


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], title: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    # the first column is what one copies (an id, a name): never broken where it fits at all
    whole = max((len(str(row[0])) for row in rows if row), default=0) <= 40
    for number, head in enumerate(heads):
        table.add_column(head, overflow="fold", no_wrap=whole and number == 0)
    for row in rows:
        table.add_row(*(escape(plain(cell)) for cell in row))
    return table


def _counted(files: int, of: int) -> str:
    return f"{files:,}/{of:,} files"


class Bar:
    """One progress bar; `at` sets where it is, `detail` what it is doing."""

    def __init__(
        self,
        shown: Progress,
        task: Any,
        plainly: Callable[[str], None] | None = None,
        unit: str = "bytes",
        files: int = 0,
        room: int = 30,
    ) -> None:
        self._shown = shown
        self._task = task
        self._files, self._room = files, room
        self._plainly = plainly
        self._show = show_size if unit == "bytes" else lambda number: str(int(number))

    def at(
        self,
        completed: float,
        total: float | None = None,
        detail: str | None = None,
        files: int = 0,
    ) -> None:
        fields: dict[str, Any] = {} if detail is None else {"detail": plain(detail)[-self._room :]}
        if total is not None:
            fields["total"] = total
        if self._files:
            fields["files"] = _counted(files, self._files)
        self._shown.update(self._task, completed=completed, **fields)
        self._say()

    def advance(self, amount: float) -> None:
        self._shown.advance(self._task, amount)
        self._say()

    def _say(self) -> None:
        if self._plainly is None:
            return
        task = self._shown.tasks[self._task]
        whole = f" of {self._show(task.total)}" if task.total else ""
        files = f", {task.fields['files']}" if self._files else ""
        self._plainly(f"{task.description}: {self._show(task.completed)}{whole}{files}")
