"""What people see: the only importer of rich. Answers go to stdout, notices to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
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
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from deploy.errors import KitError

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

    def __init__(self, machine: bool = False) -> None:
        self.machine = machine
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
    def progress(self, what: str, total: float | None, unit: str = "bytes") -> Iterator[Bar]:
        """A bar with rate and time left on a terminal; now and then a plain line elsewhere."""
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
        ]
        if unit == "bytes":
            columns += [DownloadColumn(binary_units=True), TransferSpeedColumn()]
        else:
            columns += [MofNCompleteColumn()]
        columns += [
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[detail]}", markup=False),
        ]
        quiet = not self._notices.is_terminal or bool(os.environ.get("GPUBOX_NO_PROGRESS"))
        with Progress(*columns, console=self._notices, transient=True, disable=quiet) as shown:
            yield Bar(shown, shown.add_task(plain(what), total=total, detail=""))


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], title: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    # the first column is what one copies (an id, a name): never broken where it fits at all
    whole = max((len(str(row[0])) for row in rows if row), default=0) <= 40
    for number, head in enumerate(heads):
        table.add_column(head, overflow="fold", no_wrap=whole and number == 0)
    for row in rows:
        table.add_row(*(escape(plain(cell)) for cell in row))
    return table


class Bar:
    """One progress bar; `at` sets where it is, `detail` what it is doing."""

    def __init__(self, shown: Progress, task: Any) -> None:
        self._shown = shown
        self._task = task

    def at(self, completed: float, total: float | None = None, detail: str | None = None) -> None:
        fields: dict[str, Any] = {} if detail is None else {"detail": plain(detail)[-30:]}
        if total is not None:
            fields["total"] = total
        self._shown.update(self._task, completed=completed, **fields)

    def advance(self, amount: float) -> None:
        self._shown.advance(self._task, amount)
