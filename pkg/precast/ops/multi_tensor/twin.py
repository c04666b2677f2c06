"""The ops over lists of tensors in Triton: optimizer steps, norms, scaling and sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from precast.ops._twin_rows import on
from precast.ops.multi_tensor import LAMB, LAMB_APPLY, STALE, UNCOUNTED
from precast.ops.multi_tensor import twin_updates as updates
from precast.ops.multi_tensor._lists import check_given, check_members, check_scalar
from precast.ops.multi_tensor.twin_lists import BLOCK, Plan
from precast.ops.multi_tensor.twin_updates import COEFFICIENTS, COPY, FIRST, GRAD, PARAM, SECOND, THIRD

_NAMES = ("params", "grads", "firsts", "seconds", "thirds", "copies")
_ROWS = 128  # per program of ``prepare``

_plans: dict[int, Plan] = {}
_numbers = itertools.count(1)  # numbers are never reused


def multi_tensor_plan(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    thirds: Sequence[Tensor],
    copies: Sequence[Tensor],
    idle: Sequence[Tensor],
    layout: Tensor,
) -> int:
    """The same as the op: check the tensors of a step, and return a number for them."""
    op = "multi_tensor_plan"
    lists = dict(zip(_NAMES, (params, grads, firsts, seconds, thirds, copies), strict=True))
    check_given(op, lists)
    if layout.shape != (len(params), 2) or layout.dtype != torch.int32 or layout.device.type != "cpu":
        raise RuntimeError(
            f"{op}: layout has shape {tuple(layout.shape)}; ({len(params)}, 2), int32, on the CPU is needed"
        )
    number = next(_numbers)
    _plans[number] = Plan(op, lists, idle, layout.tolist(), once=False)
    return number


def multi_tensor_forget(plan: int, steps: Tensor) -> None:
    """The same as the op."""
    _known(plan)
    del _plans[plan]


def multi_tensor_step_(
    plan: int,
    grads: Sequence[Tensor],
    steps: Tensor,
    groups: Tensor,
    rates: Sequence[Tensor],
    found_inf: Tensor | None,
    grad_scale: Tensor | None,
    max_norm: float,
    kind: int,
    flags: int,
    norm: Tensor | None = None,
    sums: Tensor | None = None,
) -> int:
    """The same as the op."""
    known = _known(plan)
    scalars = [("found_inf", found_inf), ("grad_scale", grad_scale), ("norm", norm)]
    for name, scalar in (*scalars, *(("a learning rate", rate) for rate in rates)):
        check_scalar("multi_tensor_step_", name, scalar, steps)
    if not known.current(grads):
        return STALE
    check_members("multi_tensor_step_", _given(known), kind, LAMB_APPLY)
    _check_sums(known, kind, sums, steps)
    if grad_scale is not None:
        known.check_gradients("multi_tensor_step_")
    with on(steps):
        table = known.table()
        if kind == LAMB_APPLY and sums is not None:
            squares = torch.zeros(2, steps.numel(), dtype=torch.float32, device=steps.device)
            squares[:, known.slots] = sums.view(-1, 2).t()
            _step_along(known, table, squares, flags)
            return UNCOUNTED
        if max_norm > 0.0 and norm is None:
            norm = _sums_of_squares(known, table, GRAD, steps.numel()).sum().sqrt()
        scales = (found_inf, grad_scale, norm, max_norm)
        known.coefficients = torch.empty(known.count, COEFFICIENTS, dtype=torch.float32, device=steps.device)
        _prepare(known, table, known.coefficients, steps, groups.tolist(), rates, scales, kind, flags)
        _update(known, table, grad_scale, kind, flags)
        if kind == LAMB:
            squares = _lamb_sums(known, table, steps.numel())
            if sums is None:
                _step_along(known, table, squares, flags)
            else:
                sums.copy_(squares[:, known.slots].t().flatten())
    return UNCOUNTED


def _given(plan: Plan) -> dict[int, bool]:
    return {member: plan.has(member) for member in (FIRST, SECOND, THIRD)}


def _check_sums(plan: Plan, kind: int, sums: Tensor | None, steps: Tensor) -> None:
    op = "multi_tensor_step_"
    if sums is None:
        if kind == LAMB_APPLY:
            raise RuntimeError(f"{op}: LAMB's second launch needs sums")
        return
    fits = sums.dtype == torch.float32 and sums.numel() == 2 * plan.count and sums.is_contiguous()
    if not fits or sums.device != steps.device or kind not in (LAMB, LAMB_APPLY):
        raise RuntimeError(
            f"{op}: sums is {sums.dtype} of shape {tuple(sums.shape)} on {sums.device}; two float32 for each of "
            f"{plan.count} tensors are needed, and an update of kind 4 or 5"
        )


def multi_tensor_update_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    thirds: Sequence[Tensor],
    copies: Sequence[Tensor],
    found_inf: Tensor | None,
    grad_scale: Tensor | None,
    step: float,
    factor: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    extra: float,
    kind: int,
    flags: int,
) -> None:
    """The same as the op."""
    op = "multi_tensor_update_"
    lists = dict(zip(_NAMES, (params, grads, firsts, seconds, thirds, copies), strict=True))
    count = len(params)
    plan = Plan(op, lists, places=[(0, index) for index in range(count)])
    with on(params[0]):
        like: dict[str, Any] = {"dtype": torch.float32, "device": params[0].device}
        steps = torch.full((count,), step - 1.0, **like)
        scale = torch.full((), 1.0 / factor, **like) * (1.0 if grad_scale is None else grad_scale)
        plan.coefficients = torch.empty(count, COEFFICIENTS, **like)
        table = plan.table()
        numbers = [[lr, beta1, beta2, eps, weight_decay, extra]]
        _prepare(plan, table, plan.coefficients, steps, numbers, (), (found_inf, scale, None, 0.0), kind, flags)
        _update(plan, table, None, kind, flags)
        if kind == LAMB:
            _step_along(plan, table, _lamb_sums(plan, table, count), flags)


def _prepare(
    plan: Plan,
    table: Tensor,
    coefficients: Tensor,
    steps: Tensor,
    groups: Sequence[Sequence[float]],
    rates: Sequence[Tensor],
    scales: tuple[Any, ...],
    kind: int,
    flags: int,
) -> None:
    for number, (lr, beta1, beta2, *others) in enumerate(groups):
        updates.prepare[(triton.cdiv(plan.count, _ROWS),)](
            *(table, coefficients, steps, rates[number] if rates else None, *scales),
            *(lr, 1.0 - beta1, 1.0 - beta2, _log(beta1), _log(beta2), *others, number, plan.count),
            kind=kind,
            flags=flags,
            block=_ROWS,
        )


def _log(beta: float) -> float:
    return math.log1p(beta - 1.0) if beta > 0.0 else -math.inf


def _update(plan: Plan, table: Tensor, grad_scale: Tensor | None, kind: int, flags: int) -> None:
    shape = {"flags": flags, "aligned": plan.aligned, "block": BLOCK}
    for launch in plan.launches:
        if launch.programs:
            chosen = (table, launch.owners, plan.coefficients, grad_scale, *launch.types)
            updates.update[(launch.programs,)](*chosen, kind=kind, **shape)


def _lamb_sums(plan: Plan, table: Tensor, slots: int) -> Tensor:
    """The sums of squares of parameters and of directions, by slot."""
    return torch.stack([_sums_of_squares(plan, table, member, slots) for member in (PARAM, THIRD)])


def _step_along(plan: Plan, table: Tensor, squares: Tensor, flags: int) -> None:
    """LAMB's second launch. ``squares``: the sums for parameters and for directions, by slot."""
    shape = {"flags": flags, "aligned": plan.aligned, "block": BLOCK}
    for launch in plan.launches:
        if launch.programs:
            types = (launch.types[PARAM], launch.types[THIRD], launch.types[COPY])
            chosen = (table, launch.owners, plan.coefficients, *squares.unbind(), *types)
            updates.step_along[(launch.programs,)](*chosen, **shape)


def _sums_of_squares(plan: Plan, table: Tensor, member: int, slots: int) -> Tensor:
    """The sum of squares of each tensor of a member, at its slot; the same input gives the same bits."""
    sums = torch.zeros(slots, dtype=torch.float32, device=plan.device)
    for launch in plan.launches:
        parts = torch.empty(launch.programs, dtype=torch.float32, device=plan.device)
        if launch.programs:
            updates.squares[(launch.programs,)](
                *(table, launch.owners, parts, launch.types[member]),
                member=member,
                aligned=plan.aligned,
                block=BLOCK,
            )
        updates.add_parts[(launch.count,)](table, parts, sums, launch.first, block=BLOCK, width=BLOCK)
    return sums


def multi_tensor_l2norm(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The same as the op."""
    plan = Plan("multi_tensor_l2norm", {"tensors": tensors})
    with on(tensors[0]):
        sums = _sums_of_squares(plan, plan.table(), PARAM, plan.count)
    return sums.sum().sqrt(), sums


def multi_tensor_axpby_(
    outs: Sequence[Tensor],
    xs: Sequence[Tensor],
    ys: Sequence[Tensor],
    a: float,
    b: float,
    factor: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """The same as the op."""
    plan = Plan("multi_tensor_axpby_", {"outs": outs, "xs": xs, "ys": ys})
    with on(outs[0]):
        table = plan.table()
        for launch in plan.launches:
            if launch.programs:
                updates.axpby[(launch.programs,)](
                    *(table, launch.owners, factor, found_inf, a, b, *launch.types[: FIRST + 1]),
                    aligned=plan.aligned,
                    block=BLOCK,
                )


def _known(plan: int) -> Plan:
    if plan not in _plans:
        raise RuntimeError(f"multi_tensor_step_: there is no plan {plan}")
    return _plans[plan]
