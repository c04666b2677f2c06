"""The progress of a release: live bars on a terminal, elsewhere one plain line for each finished step."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tools.shared.schedule import Outcome, Step
from tools.shared.wheelhouse import Record

_IN_A_FILE = 400  # columns; a file has no width of its own, and a table takes no more than it needs


def console() -> Console:
    """A console for standard output: as wide as the terminal, or wide enough for every table."""
    return Console(width=None if sys.stdout.isatty() else _IN_A_FILE)


class Display(Protocol):
    """Gets the start and the end of each step."""

    def start(self, step: Step) -> None:
        """A step begins."""

    def end(self, outcome: Outcome) -> None:
        """A step has ended."""


class Lines:
    """For logs and pipes."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._total, self._count = len(steps), 0

    def start(self, step: Step) -> None:
        """Print nothing, because lines are for finished steps."""

    def end(self, outcome: Outcome) -> None:
        """Print one line."""
        self._count += 1
        how = "FAILED" if outcome.status else "reused" if outcome.reused else "made"
        print(f"[{self._count:>3}/{self._total}] {outcome.seconds:6.1f} s  {how:6}  {outcome.said}", flush=True)


class Bars:
    """For terminals: a bar for each kind of step, and the running steps below."""

    def __init__(self, steps: Sequence[Step], progress: Progress) -> None:
        self._progress = progress
        kinds = Counter(step.kind for step in steps)
        self._kinds = {kind: progress.add_task(kind, total=count) for kind, count in kinds.items()}
        self._at_work: dict[str, TaskID] = {}

    def start(self, step: Step) -> None:
        """Add a line below the bars."""
        self._at_work[step.name] = self._progress.add_task(f"  [dim]{step.name}", total=None)

    def end(self, outcome: Outcome) -> None:
        """Remove the line, advance its bar, and print a line for a new file or a failure above."""
        self._progress.remove_task(self._at_work.pop(outcome.step.name))
        self._progress.advance(self._kinds[outcome.step.kind])
        if outcome.status or not outcome.reused:
            colour = "red" if outcome.status else "green"
            self._progress.console.print(f"[{colour}]{outcome.seconds:6.1f} s[/]  {outcome.said}", highlight=False)


@contextmanager
def display(steps: Sequence[Step], console: Console) -> Iterator[Display]:
    """The display that suits the console."""
    if not console.is_terminal:
        yield Lines(steps)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bars(steps, progress)


def summary(outcomes: Sequence[Outcome], records: dict[str, Record], seconds: float, console: Console) -> None:
    """Print a row for each finished file, then one for each other kind of step, then the total."""
    table = Table(box=None, pad_edge=False)
    for title in ("file", "bytes", "seconds", ""):
        table.add_column(title, justify="right" if title in ("bytes", "seconds") else "left", no_wrap=True)
    files = [outcome for outcome in outcomes if outcome.step.name in records]
    for outcome in files:
        record = records[outcome.step.name]
        how = "reused" if outcome.reused else "built"
        table.add_row(record.file, f"{record.bytes:,}", f"{outcome.seconds:.1f}", how)
    for kind in dict.fromkeys(outcome.step.kind for outcome in outcomes if outcome not in files):
        some = [outcome for outcome in outcomes if outcome.step.kind == kind and outcome not in files]
        reused = sum(outcome.reused for outcome in some)
        spent = sum(outcome.seconds for outcome in some)
        table.add_row(f"{len(some)} x {kind}", "", f"{spent:.1f}", f"{reused} reused")
    size = sum(records[outcome.step.name].bytes for outcome in files)
    built = sum(not outcome.reused for outcome in files)
    table.add_row(f"{len(files)} files", f"{size:,}", f"{seconds:.1f}", f"{built} built, {len(files) - built} reused")
    console.print(table)
