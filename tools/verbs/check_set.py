"""Hold a folder of finished files against the plan: each wheel of it and the sdist, by name, number and hash; no other.

With --cell, one wheel and what else the plan names may be missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from precast._builder import matrix
from precast._builder.matrix import Matrix
from precast.errors import KernelError
from tools.shared import wheelhouse
from tools.shared.cells import Plan, expand, label_of
from tools.verbs import sdist
from tools.verbs.build import wheel_name


def expected(plan: Plan, known: Matrix) -> dict[str, str]:
    """The file that a plan promises for each cell."""
    wheels = {
        cell.name: wheel_name(known, known.label(label_of(cell.label)), cell.machine)
        for cell in plan.wheel
        if not cell.not_built
    }
    return {**wheels, wheelhouse.SDIST_CELL: sdist.NAME}


def main(arguments: list[str]) -> int:
    """Check one folder; the exit status is 1 if a file is missing, changed or unexpected."""
    parser = argparse.ArgumentParser(prog="python -m tools check-set", description=__doc__)
    parser.add_argument("wheelhouse", type=Path)
    parser.add_argument("--event", default="release", help="pr, main, nightly or release (the default)")
    parser.add_argument("--cell", help="the one wheel cell that was built")
    parser.add_argument("--only-torch", metavar="MINOR", help="for slim wheels")
    options = parser.parse_args(arguments)
    try:
        known = matrix.load(Path(__file__).resolve().parents[2] / "matrix.toml")
        wanted = expected(expand(known, known.event(options.event), options.only_torch or None), known)
        found = list(wheelhouse.problems(options.wheelhouse, wanted, complete=not options.cell))
        if options.cell and options.cell not in wheelhouse.read(options.wheelhouse):
            found.append(f"{options.cell}: no such cell was built")
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    for line in found:
        print(line, file=sys.stderr)
    there = [wanted[cell] for cell in wheelhouse.read(options.wheelhouse) if cell in wanted] if not found else []
    print(f"{len(there)} of {len(wanted)} files, {len(found)} problems")
    return 1 if found else 0
