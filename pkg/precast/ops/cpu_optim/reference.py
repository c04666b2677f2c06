"""One step of each CPU optimizer in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from precast.ops._reference import wide


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
    """One step of Adam (0), SGD (1), Adagrad (2) or Lion (3) over every parameter, in place."""
    rows = [row for row in numbers.view(-1, 9).tolist() for _ in range(int(row[-1]))]
    for i, (param, grad, row) in enumerate(zip(params, grads, rows, strict=True)):
        lr, beta1, beta2, eps, decay, extra, flag, maximize, _ = row
        p = wide(param)
        m, v, greatest = (
            wide(list_[i]).view(p.shape) if list_ and list_[i].numel() else None for list_ in (first, second, third)
        )
        g = grad.reshape(p.shape).to(p.dtype) * (-grad_scale if maximize else grad_scale)
        if rule == 3 or (rule == 0 and flag):
            p = p * (1 - lr * decay)
        else:
            g = g + decay * p
        count = float(steps[i]) + 1 if steps else 1.0
        direction = g
        if rule == 0 and m is not None and v is not None:
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            greatest = None if greatest is None else torch.maximum(greatest, v)
            by1, by2 = (1.0, 1.0) if extra else (1 - beta1**count, 1 - beta2**count)
            root = (v if greatest is None else greatest).sqrt() / math.sqrt(by2)
            direction = m / (root + eps) / by1
        elif rule == 1 and m is not None:
            m = beta1 * m + (1 - extra) * g
            direction = g + beta1 * m if flag else m
        elif rule == 2 and v is not None:
            v = v + g * g
            direction = g / (v.sqrt() + eps) / (1 + (count - 1) * extra)
        elif rule == 3 and m is not None:
            signs = beta1 * m + (1 - beta1) * g
            direction, m = torch.where(signs.isnan(), signs, signs.sign()), beta2 * m + (1 - beta2) * g
        p = p - lr * direction
        targets = [
            (param, p),
            *((list_[i], t) for list_, t in ((first, m), (second, v), (third, greatest)) if t is not None),
        ]
        if copies and copies[i].numel():
            targets.append((copies[i], p))
        for target, values in targets:
            target.copy_(values.view(target.shape))
    for step in steps:
        step.add_(1)
