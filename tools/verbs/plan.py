"""Expand matrix.toml into the cells of an event: a table for people, JSON for a workflow.

Cells that the build cannot make yet are in the table, marked, with the reason; the JSON keeps them apart from the
matrices, so that no job starts for them. Exit status: 0; 1 when the matrix or the plan cannot be.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from precast._builder import matrix
from precast.errors import KernelError
from tools.shared import evidence, plan_summary
from tools.shared.cells import Cell, DeviceCell, HostCell, Plan, WheelCell, expand
from tools.shared.columns import columns
from tools.shared.one_cell import narrow
from tools.shared.wheel import NotAWheel


def as_json(plan: Plan) -> str:
    """The plan for a workflow, one cell per line: ``fromJSON(plan).matrices.wheel`` is the value of ``matrix``."""
    names = list(plan.matrices())
    built = {name: [_document(cell) for cell in cells if not cell.not_built] for name, cells in plan.matrices().items()}
    lines = ["{", f' "event": {json.dumps(plan.event)},', f' "only_torch": {json.dumps(plan.only_torch)},']
    lines += [f' "sdist": {json.dumps({"runner": plan.sdist_runner})},']
    lines += [f' "gpu": {json.dumps({"runner": plan.gpu_runner})},', ' "matrices": {']
    for name in names:
        end = "" if name == names[-1] else ","
        lines += [f'  "{name}": {{"include": [', *_joined(built[name]), f"  ]}}{end}"]
    missing: list[dict[str, object]] = [
        {"name": cell.name, "not_built": cell.not_built} for cell in plan.cells if cell.not_built
    ]
    lines += [" },", ' "not_built": [', *_joined(missing), " ]", "}"]
    return "\n".join(lines) + "\n"


def _joined(documents: list[dict[str, object]]) -> list[str]:
    last = len(documents) - 1
    return [f"   {json.dumps(document)}{',' if i < last else ''}" for i, document in enumerate(documents)]


def as_outputs(plan: Plan, known: matrix.Matrix) -> str:
    """The matrices and runners as outputs of a workflow step, one per line; every matrix is listed, even if empty."""
    matrices = {f"test-{machine}": () for machine in known.machines} | plan.matrices()
    lines = [f"sdist={plan.sdist_runner}\n", f"gpu={plan.gpu_runner}\n"]
    for name, cells in matrices.items():
        built = [_document(cell) for cell in cells if not cell.not_built]
        lines.append(f"{name}={json.dumps({'include': built})}\n")
    return "".join(lines)


def _document(cell: Cell) -> dict[str, object]:
    return {key: value for key, value in dataclasses.asdict(cell).items() if key != "not_built"}


def table(plan: Plan) -> str:
    """The plan as readable text: one row per cell, a dash before cells that are not built, the reasons below."""
    only = "" if plan.only_torch is None else f" for torch {plan.only_torch} only"
    parts = [f"plan for {plan.event}{only}\n"]
    for title, cells in plan.matrices().items():
        missing = sum(cell.not_built is not None for cell in cells)
        note = f", {missing} of them not built yet (-)" if missing else ""
        parts.append(f"{title}: {len(cells)}{note}\n{columns(map(_row, cells))}\n")
    parts.append(f"sdist: 1\n    {plan.sdist_runner}\n")
    reasons = dict.fromkeys(cell.not_built for cell in plan.cells if cell.not_built)
    if reasons:
        parts.append("not built yet:\n" + "".join(f"  - {reason}\n" for reason in reasons))
    return "\n".join(parts)


def _row(cell: Cell) -> tuple[str, ...]:
    mark = "  - " if cell.not_built else "    "
    if isinstance(cell, DeviceCell):
        return (mark + cell.name, cell.requirement, " ".join(cell.targets), cell.runner)
    if isinstance(cell, HostCell):
        return (mark + cell.name, f"headers of torch {cell.headers}" if cell.headers else "no torch", cell.runner)
    if isinstance(cell, WheelCell):
        hosts = [name.removesuffix(f"-{cell.machine}") for name in cell.host]
        lacks = f"({len(cell.lacks)} host files to come)" if cell.lacks else ""
        return (mark + cell.name, f"< {cell.max_bytes} bytes", " ".join(cell.device), " ".join([*hosts, lacks]))
    torch = f"torch {cell.torch} {cell.build}"
    return (mark + cell.name.partition("-")[0], torch, f"Python {cell.python}", cell.wheel, cell.abi)


def main(arguments: list[str]) -> int:
    """Expand and print."""
    parser = argparse.ArgumentParser(prog="python -m tools plan", description=__doc__)
    parser.add_argument("--event", default="release", help="pr, main, nightly or release (the default)")
    parser.add_argument("--only-torch", metavar="MINOR", help="plan slim wheels for one minor of torch, such as 2.6")
    parser.add_argument("--cell", metavar="NAME", help="plan one cell, what it is made of and what tests it")
    parser.add_argument(
        "--outputs", type=Path, metavar="FILE", help="append the matrices as outputs of a workflow step"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for a workflow")
    parser.add_argument(
        "--summary", action="store_true", help="print counts: cells, what they serve, what was executed"
    )
    parser.add_argument("--wheelhouse", type=Path, metavar="DIR", help="with --summary: count and measure these wheels")
    parser.add_argument("--matrix", type=Path, default=Path(__file__).resolve().parents[2] / "matrix.toml")
    options = parser.parse_args(arguments)
    try:
        known = matrix.load(options.matrix)
        # A workflow passes an empty string for an empty field of its form.
        plan = expand(known, known.event(options.event), options.only_torch or None)
        if options.cell:
            plan = narrow(plan, options.cell)
        if options.summary:
            print(plan_summary.of(plan, known, evidence.load(evidence.FOLDER, known), options.wheelhouse), end="")
            return 0
    except (KernelError, NotAWheel) as error:
        print(error, file=sys.stderr)
        return 1
    if options.outputs is not None:
        with options.outputs.open("a", encoding="utf-8") as file:
            file.write(as_outputs(plan, known))
    print(as_json(plan) if options.json else table(plan), end="")
    return 0
