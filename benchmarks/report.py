"""Shared by all benchmarks: rows with a peer and a ratio, interleaved timing, and facts about the machine."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured number and a peer's. Lower is better for times, higher for shares and rates."""

    what: str
    ours: float
    unit: str
    peer_name: str = ""
    peer: float | None = None
    higher_is_better: bool = False
    target: str = ""
    paired: float | None = None  # median of the rounds' ratios, if a machine drifts by more than the two differ

    @property
    def ratio(self) -> float | None:
        """Our speedup; below 1 the peer wins."""
        if self.paired is not None:
            return self.paired
        if self.peer is None:
            return None
        return self.ours / self.peer if self.higher_is_better else self.peer / self.ours


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's outcome: its rows, or the reason why there are none on this machine."""

    name: str
    title: str
    rows: tuple[Row, ...] = ()
    skipped: str = ""
    notes: tuple[str, ...] = ()


def interleaved_medians(functions: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Call each function once per round, in turn, and return the median of its results.

    A function returns its own time. Taking turns spreads the drift of a machine over all functions.
    """
    return {name: statistics.median(values) for name, values in interleaved(functions, rounds).items()}


def interleaved(functions: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each function once per round, in turn, and return its results, round by round."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            samples[name].append(function())
    return samples


def timed(function: Callable[[], object], calls: int = 1) -> Callable[[], float]:
    """Return a function that runs ``function`` ``calls`` times and returns the seconds per call."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls

    return run


def host_facts() -> dict[str, str]:
    """Describe the parts of the machine that explain the figures."""
    import torch

    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "cpu": cpu,
        "threads": str(torch.get_num_threads()),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def number(value: float) -> str:
    """Print four significant digits without an exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.4g}".rstrip(".")


def print_report(report: Report) -> None:
    """Print one table; a ratio above 1 means that precast is better."""
    print(f"\n{report.title}")
    if report.skipped:
        print(f"  skipped: {report.skipped}")
    if report.rows:
        head = ("", "precast", "unit", "peer", "", "times better", "target")
        cells = [
            (
                row.what,
                number(row.ours),
                row.unit,
                "" if row.peer is None else number(row.peer),
                row.peer_name,
                "" if row.ratio is None else f"{row.ratio:.2f}",
                row.target,
            )
            for row in report.rows
        ]
        widths = [max(len(line[column]) for line in (head, *cells)) for column in range(len(head))]
        for line in (head, tuple("-" * width for width in widths), *cells):
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for note in report.notes:
        print(f"  {note}")


def save(report: Report, facts: Mapping[str, str]) -> Path:
    """Write one benchmark's figures and the machine they belong to."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{report.name}.json"
    rows = [{**asdict(row), "ratio": row.ratio} for row in report.rows]
    path.write_text(json.dumps({**asdict(report), "rows": rows, "host": dict(facts)}, indent=1) + "\n")
    return path
