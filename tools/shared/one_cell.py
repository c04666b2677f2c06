"""Narrow a plan to one cell and the cells that belong to it, to run a single cell again or to try it on one machine."""

from __future__ import annotations

import dataclasses

from tools.shared.cells import Plan, PlanError, TestCell, WheelCell


def narrow(plan: Plan, name: str) -> Plan:
    """Keep the cell ``name``, its parts and, for a wheel, its tests. PlanError if it cannot be built."""
    cells = {cell.name: cell for cell in plan.cells}
    cell = cells.get(name)
    if cell is None:
        raise PlanError(
            f"the plan for {plan.event} has no cell {name!r}; `python -m tools plan --event {plan.event}` lists them"
        )
    if cell.not_built:
        raise PlanError(f"{name} cannot be built yet: {cell.not_built}")
    kept = {name}
    wheel = cells[cell.wheel] if isinstance(cell, TestCell) else cell
    if isinstance(wheel, WheelCell):
        kept |= {wheel.name, *wheel.device, *wheel.host}
        if wheel is cell:
            kept |= {test.name for test in plan.test if test.wheel == name and not test.not_built}
    return dataclasses.replace(
        plan,
        device=tuple(found for found in plan.device if found.name in kept),
        host=tuple(found for found in plan.host if found.name in kept),
        # Parts that cannot be built are not part of the narrowed plan.
        wheel=tuple(dataclasses.replace(found, lacks=()) for found in plan.wheel if found.name in kept),
        test=tuple(found for found in plan.test if found.name in kept),
    )
