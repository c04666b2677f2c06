"""Audit wheels, and the checkout that makes them: ask every guard, and name what breaks its promise.

Without a wheel, only the checkout is looked at. Exit status: 0, every guard passed; 1, one refused; 2, not a wheel.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from precast._builder import matrix
from precast.core.reasons import Rejection
from precast.errors import KernelError
from tools.guards import GUARDS, WORKFLOWS, WORKFLOWS_PROMISE, judge_checkout, judge_wheel
from tools.guards.subject import TORCH_LISTS, Asked, Result, Verdict
from tools.shared import cells, display
from tools.shared.wheel import NotAWheel, read_wheel

ROOT = Path(__file__).resolve().parents[2]
_STYLES = {Verdict.PASSED: "green", Verdict.REFUSED: "bold red", Verdict.BLOCKED: "yellow", Verdict.NOT_ASKED: "dim"}


def audit(path: Path, known: matrix.Matrix, *, repaired: bool = True, only_torch: str | None = None) -> list[Rejection]:
    """Every violation of one wheel; raises NotAWheel if the file cannot be read."""
    results = judge_wheel(read_wheel(path), known, Asked(repaired, only_torch=only_torch))
    return [violation for result in results for violation in result.violations]


def show(results: Iterable[Result]) -> None:
    """Print one table of verdicts, with a line for each violation under the guard that refused."""
    table = Table(box=None, pad_edge=False)
    for column in ("guard", "verdict", "where", "needed", "found"):
        table.add_column(column, overflow="fold")
    for result in results:
        verdict = Text(result.verdict.value, style=_STYLES[result.verdict])
        table.add_row(result.guard, verdict, Text(result.note, style="dim"))
        for violation in result.violations:
            cells = (violation.candidate, violation.needed, violation.found)
            table.add_row("", Text(violation.reason), *(Text(_cut(cell)) for cell in cells))
    display.console().print(table)


def _cut(text: str, most: int = 400) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def as_json(subjects: Sequence[tuple[str, Sequence[Result]]]) -> str:
    """Every result of every wheel and of the checkout, whose name is empty."""
    return json.dumps(
        [{"wheel": name, "results": [asdict(result) for result in results]} for name, results in subjects], indent=1
    )


def _called(name: str) -> str:
    return Path(name).name or "this checkout"


def _refusals(name: str, results: Iterable[Result]) -> Iterator[str]:
    """A line for each guard that did not pass. They end the output, as a long log is read from its end."""
    for result in results:
        if result.verdict in (Verdict.REFUSED, Verdict.BLOCKED):
            first, more = next(map(str, result.violations), result.note), len(result.violations) - 1
            why = _cut(" ".join(first.split())) + (f" (and {more} more)" if more > 0 else "")
            yield f"{_called(name)}: {result.verdict.value} by the guard {result.guard!r}: {why}"


def listing() -> None:
    """Print the guards and their promises."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for guard in GUARDS:
        table.add_row(guard.name, guard.promise)
    table.add_row(WORKFLOWS, WORKFLOWS_PROMISE)
    display.console().print(table)


def main(arguments: list[str]) -> int:
    """Audit the checkout and each wheel named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools audit", description=__doc__)
    parser.add_argument("wheel", type=Path, nargs="*")
    parser.add_argument("--list", action="store_true", help="print the guards and what each promises")
    parser.add_argument("--json", action="store_true", help="print a result for each guard as JSON")
    parser.add_argument("--unrepaired", action="store_true", help="accept a wheel from before `python -m tools repair`")
    parser.add_argument("--publish", action="store_true", help="refuse a wheel of no commit, or with changes beside it")
    parser.add_argument("--twin", type=Path, metavar="WHEEL", help="a second build: it must be the same bytes")
    parser.add_argument(
        "--torch",
        type=Path,
        default=TORCH_LISTS,
        metavar="DIR",
        help="<abi>.txt or <abi>/ with the libraries of its torch",
    )
    parser.add_argument("--only-torch", metavar="MINOR", help="what a slim wheel serves, such as 2.6")
    parser.add_argument("--matrix", type=Path, default=ROOT / "matrix.toml")
    options = parser.parse_args(arguments)
    if options.list:
        listing()
        return 0
    if options.twin is not None and len(options.wheel) != 1:
        parser.error("--twin compares with one wheel")
    try:
        known = matrix.load(options.matrix)
        cells.expand(known, known.event("release"), options.only_torch or None)  # refuses an unknown minor
    except KernelError as error:
        print(error, file=sys.stderr)
        return 2
    asked = Asked(not options.unrepaired, options.twin, options.torch, options.only_torch or None, options.publish)
    subjects: list[tuple[str, Sequence[Result]]] = [("", [judge_checkout(ROOT, known)])]
    for path in options.wheel:
        try:
            wheel = read_wheel(path)
        except NotAWheel as error:
            print(f"{error}", file=sys.stderr)
            return 2
        subjects.append((str(path), judge_wheel(wheel, known, asked)))
    if options.json:
        print(as_json(subjects))
    for name, results in () if options.json else subjects:
        size = f": {Path(name).stat().st_size} bytes" if name else ""
        violations = sum(len(result.violations) for result in results)
        print(f"{_called(name)}{size}, {violations} violations")
        show(results)
    refusals = [line for name, results in subjects for line in _refusals(name, results)]
    if not options.json:
        print("".join(f"{line}\n" for line in refusals), end="")
    return int(bool(refusals))
