"""One step of each CPU optimizer in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from precast.ops._reference import wide
from precast.ops._updates import MAXIMIZE, Numbers, along, update
from precast.ops.cpu_optim import COLUMNS


def optimize_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    third: Sequence[Tensor],
    steps: Sequence[Tensor],
    copies: Sequence[Tensor],
    plan: Tensor,
    numbers: Tensor,
    grad_scale: float,
    rule: int,
) -> None:
    """One step of a rule over every parameter, in place."""
    rows = [row for row in numbers.view(-1, COLUMNS).tolist() for _ in range(int(row[-1]))]
    for i, (param, grad, row) in enumerate(zip(params, grads, rows, strict=True)):
        group, flags = Numbers(*row[:-2]), int(row[-2])
        p = wide(param)
        lists = [own if own and own[i].numel() == p.numel() else None for own in (first, second, third)]
        m, v, other = (None if tensors is None else wide(tensors[i]).view(p.shape) for tensors in lists)
        g = grad.reshape(p.shape).to(p.dtype) * (-grad_scale if flags & MAXIMIZE else grad_scale)
        step = float(steps[i]) + 1 if steps else 0.0  # 0: the rule counts no steps
        direction, states = update(rule, p, g, (m, v, other), group, step, flags)
        p = p - along(p, direction, group, flags)
        written = [(tensors[i], new) for tensors, new in zip(lists, states, strict=True) if tensors and new is not None]
        if copies and copies[i].numel():
            written.append((copies[i], p))
        for target, values in [(param, p), *written]:
            target.copy_(values.view(target.shape))
    for count in steps:
        count.add_(1)
