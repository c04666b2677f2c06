"""The ops over lists in plain torch, which stand in where there is no kernel. They never wait for the GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from precast._dispatch.formulas import are_bare, means_its_memory
from precast.ops._reference import wide
from precast.ops._updates import (
    ALWAYS_ADAPT,
    DECOUPLED,
    LAMB,
    LAMB_APPLY,
    MAXIMIZE,
    Number,
    Numbers,
    along,
    update,
)
from precast.ops._written import check_apart, check_memory, is_short, overlap, range_of
from precast.ops.multi_tensor import STALE, UNCOUNTED
from precast.ops.multi_tensor._lists import check_given, check_layout, check_members, check_scalar, fits

_NAMES = ("params", "grads", "firsts", "seconds", "thirds", "copies")


class _Row(NamedTuple):
    """The tensors of one index; those of states and the copy may be absent."""

    param: Tensor
    grad: Tensor
    first: Tensor | None
    second: Tensor | None
    third: Tensor | None
    copy: Tensor | None


@dataclass(frozen=True, eq=False, slots=True)
class _Plan:
    """The lists of a step, as they were when it was made."""

    lists: dict[str, list[Tensor]]
    idle: tuple[Tensor, ...]
    places: list[list[int]]  # the group and the slot of each index
    sizes: list[int]
    addresses: list[list[int]]
    grad_dtypes: list[torch.dtype]

    def gradients(self, given: Sequence[Tensor]) -> list[Tensor] | None:
        """The gradients of this step, given or the parameters' own; None if the plan no longer describes them."""
        params = self.lists["params"]
        owners = self.lists["copies"] or params
        grads = list(given) or [param.grad for param in owners if param.grad is not None]
        rows = [params, grads, *(self.lists[name] for name in _NAMES[2:] if self.lists[name])]
        everything = list(itertools.chain.from_iterable(rows))
        same = (
            len(grads) == len(params)
            and means_its_memory(*everything)
            and _addresses(self.lists) == self.addresses
            and all([tensor.numel() for tensor in tensors] == self.sizes for tensors in rows)
            and all(all(map(fits, tensors, params)) for tensors in rows)
            and not any(map(is_short, everything))
            and [grad.dtype for grad in grads] == self.grad_dtypes
            and all(grad.device == params[0].device for grad in grads)
            and (bool(given) or (are_bare(grads) and all(param.grad is None for param in self.idle)))
        )
        return grads if same else None


_plans: dict[int, _Plan] = {}
_next = itertools.count(1)  # numbers are never reused


def multi_tensor_l2norm(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The root of the sum of all squares, and the sum of squares of each tensor; float32 or wider."""
    squares = torch.stack([wide(tensor).square().sum() for tensor in tensors])
    return squares.sum().sqrt(), squares


def multi_tensor_axpby_(
    outs: Sequence[Tensor],
    xs: Sequence[Tensor],
    ys: Sequence[Tensor],
    a: float,
    b: float,
    factor: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """``outs = a * factor * xs + b * ys``; sets ``found_inf`` to 1 if an x or y is not finite."""
    op = "multi_tensor_axpby_"
    check_layout(op, {"outs": outs, "xs": xs, **({"ys": ys} if ys else {})})
    # An out may be its own x or y.
    others = [x for terms in (xs, ys) for x, out in zip(terms, outs, strict=False) if range_of(x) != range_of(out)]
    check_apart(op, [*outs, *_present(found_inf)], [*others, *_present(factor)], "an x, a y or the factor")
    for index, (out, x) in enumerate(zip(outs, xs, strict=True)):
        read = [x, ys[index]] if ys else [x]
        result = wide(x) * (a if factor is None else a * factor)
        if found_inf is not None:
            for tensor in read:
                found_inf.copy_(torch.where(tensor.isfinite().all(), found_inf, 1.0))
        _keep(out, (result + b * wide(ys[index]).reshape(x.shape) if ys else result).reshape(out.shape), None)


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
    """Check the tensors of a step, and return a number for them."""
    op = "multi_tensor_plan"
    given = map(list, (params, grads, firsts, seconds, thirds, copies))
    lists: dict[str, list[Tensor]] = dict(zip(_NAMES, given, strict=True))
    _check_lists(op, lists)
    if layout.shape != (len(params), 2) or layout.dtype != torch.int32 or layout.device.type != "cpu":
        raise RuntimeError(
            f"{op}: layout has shape {tuple(layout.shape)}; ({len(params)}, 2), int32, on the CPU is needed"
        )
    _check_memory(op, lists)
    number = next(_next)
    sizes, dtypes = [param.numel() for param in params], [grad.dtype for grad in grads]
    lists["grads"] = []
    _plans[number] = _Plan(lists, tuple(idle), layout.tolist(), sizes, _addresses(lists), dtypes)
    return number


def multi_tensor_forget(plan: int, steps: Tensor) -> None:
    """Release what a plan holds."""
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
    norm: Tensor | None,
    sums: Tensor | None,
) -> int:
    """One step of all tensors of a plan; checks everything before it writes."""
    op, known = "multi_tensor_step_", _known(plan)
    scalars = [("found_inf", found_inf), ("grad_scale", grad_scale), ("norm", norm)]
    for name, scalar in (*scalars, *(("a learning rate", rate) for rate in rates)):
        check_scalar(op, name, scalar, steps)
    if len(rates) not in (0, len(groups)):
        raise RuntimeError(f"{op}: {len(rates)} rates for {len(groups)} groups; one for each is needed")
    now = known.gradients(grads)
    if now is None:
        return STALE
    check_members(op, [known.lists[name] for name in _NAMES[2:5]], kind, apply=True)
    _check_sums(op, len(now), kind, sums, steps)
    if grad_scale is not None and overlap(now):
        raise RuntimeError(f"{op}: two gradients share memory; each must have its own to be unscaled in place")
    skip = None if found_inf is None else found_inf.reshape(()) != 0
    if max_norm > 0.0 and norm is None:
        norm = multi_tensor_l2norm(now)[0]
    by = _factor(grad_scale, norm, max_norm, flags)
    table = [Numbers(*row) for row in groups.tolist()]
    if rates:
        table = [numbers._replace(lr=rate.reshape(())) for numbers, rate in zip(table, rates, strict=True)]
    parts = None if sums is None else sums.view(-1, 2)
    for index, row in enumerate(_rows(known.lists | {"grads": now})):
        group, slot = known.places[index]
        if kind != LAMB_APPLY:
            step = steps[slot] + 1.0
            direction = _update(row, by, step, table[group], kind, flags, skip)
            _keep(steps[slot], step, skip)
            if grad_scale is not None:
                _keep(row.grad, wide(row.grad) / grad_scale, skip)
        else:
            assert row.third is not None  # check_members has seen to it
            direction = row.third
        if kind in (LAMB, LAMB_APPLY):
            if kind == LAMB and parts is not None:
                parts[index].copy_(torch.stack([wide(row.param).square().sum(), direction.square().sum()]))
            else:
                _step_along(row, direction, None if parts is None else parts[index], table[group], flags, skip)
    return UNCOUNTED


def _addresses(lists: dict[str, list[Tensor]]) -> list[list[int]]:
    return [[tensor.data_ptr() for tensor in tensors] for tensors in lists.values()]


def _known(plan: int) -> _Plan:
    if plan not in _plans:
        raise RuntimeError(f"multi_tensor_step_: there is no plan {plan}")
    return _plans[plan]


def _check_lists(op: str, lists: dict[str, list[Tensor]]) -> None:
    check_given(op, lists)
    check_layout(op, {name: tensors for name, tensors in lists.items() if tensors})


def _check_memory(op: str, lists: dict[str, list[Tensor]]) -> None:
    for name, tensors in lists.items():
        for index, tensor in enumerate(tensors):
            check_memory(op, f"{name}[{index}]", tensor, written=name != "grads")
    check_apart(op, _written(lists), lists["grads"])


def _written(lists: dict[str, list[Tensor]]) -> list[Tensor]:
    return list(itertools.chain.from_iterable(lists[name] for name in _NAMES if name != "grads"))


def _present(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _check_sums(op: str, count: int, kind: int, sums: Tensor | None, steps: Tensor) -> None:
    if sums is None:
        if kind == LAMB_APPLY:
            raise RuntimeError(f"{op}: LAMB's second launch needs sums")
        return
    fitting = sums.dtype == torch.float32 and sums.numel() == 2 * count and sums.is_contiguous()
    if not fitting or sums.device != steps.device or kind not in (LAMB, LAMB_APPLY):
        raise RuntimeError(
            f"{op}: sums is {sums.dtype} of shape {tuple(sums.shape)} on {sums.device}; two float32 for each of "
            f"{count} tensors are needed, and an update of kind 4 or 5"
        )


def _factor(grad_scale: Tensor | None, norm: Tensor | None, max_norm: float, flags: int) -> Number:
    """What the gradients are multiplied by as they are read."""
    by: Number = -1.0 if flags & MAXIMIZE else 1.0
    if grad_scale is not None:
        by = by / grad_scale.reshape(())
    if norm is not None:
        size = norm.reshape(()) if grad_scale is None else norm.reshape(()) / grad_scale.reshape(())
        share = max_norm / (size + 1e-6)
        by = by * torch.where(share >= 1.0, 1.0, share)  # keeps a NaN
    return by


def _rows(lists: dict[str, list[Tensor]]) -> Iterator[_Row]:
    """The tensors of each index, in one shape."""
    for index, param in enumerate(lists["params"]):
        found: dict[str, Any] = {
            field: _as(tensors[index], param) if tensors else None
            for field, tensors in zip(_Row._fields, lists.values(), strict=True)
        }
        yield _Row(**found)


def _as(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor if tensor.shape == like.shape else tensor.view(like.shape)


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
    """One step of any kind, one tensor after the other; nothing if ``found_inf`` is not 0."""
    by = _factor(grad_scale, None, 0.0, flags) * factor
    numbers = Numbers(lr, beta1, beta2, eps, weight_decay, extra)
    skip = None if found_inf is None else found_inf.reshape(()) != 0
    given = map(list, (params, grads, firsts, seconds, thirds, copies))
    lists: dict[str, list[Tensor]] = dict(zip(_NAMES, given, strict=True))
    rows = list(_rows(lists))
    _check_memory("multi_tensor_update_", lists)
    check_apart("multi_tensor_update_", _written(lists), _present(found_inf, grad_scale), "found_inf or grad_scale")
    for row in rows:
        direction = _update(row, by, step, numbers, kind, flags, skip)
        if kind == LAMB:
            _step_along(row, direction, None, numbers, flags, skip)


def _update(
    row: _Row, by: Number, step: Number, numbers: Numbers, kind: int, flags: int, skip: Tensor | None
) -> Tensor:
    """Update the states and, but for LAMB, the parameter; returns the direction of the step."""
    p, own = wide(row.param), (row.first, row.second, row.third)
    first, second, third = (None if state is None else wide(state) for state in own)
    direction, states = update(kind, p, wide(row.grad) * by, (first, second, third), numbers, step, flags)
    for state, new in zip(own, states, strict=True):
        if new is not None:
            _keep(state, new, skip)
    if kind != LAMB:
        _move(row, along(p, direction, numbers, flags), skip)
    return direction


def _step_along(
    row: _Row, direction: Tensor, squares: Tensor | None, numbers: Numbers, flags: int, skip: Tensor | None
) -> None:
    """LAMB's step, scaled to the norm of the parameter; ``squares``: the sums for the parameter and the direction."""
    if squares is None:
        squares = torch.stack([wide(row.param).square().sum(), direction.square().sum()])
    size, length = squares.sqrt().unbind()
    ratio = torch.where((size > 0.0) & (length > 0.0), size / length, 1.0)
    adapts = flags & ALWAYS_ADAPT or (flags & DECOUPLED and numbers.weight_decay)
    _move(row, numbers.lr * (ratio if adapts else 1.0) * wide(direction), skip)


def _move(row: _Row, step: Tensor, skip: Tensor | None) -> None:
    moved = wide(row.param) - step
    _keep(row.param, moved, skip)
    _keep(row.copy, moved, skip)


def _keep(out: Tensor | None, value: Tensor, skip: Tensor | None) -> Tensor:
    """Write a tensor that may be absent, unless the step is skipped; the value before it is rounded."""
    if out is not None:
        out.copy_(value if skip is None else torch.where(skip, out, value.to(out.dtype)))
    return value
