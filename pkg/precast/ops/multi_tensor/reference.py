"""The ops over lists in plain torch, except for the steps with a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from precast.ops._reference import wide
from precast.ops.multi_tensor import (
    ADAGRAD,
    ADAM,
    ALWAYS_ADAPT,
    DECOUPLED,
    LAMB,
    MAXIMIZE,
    NESTEROV,
    SGD,
    SUMMED,
    UNCORRECTED,
)


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
    for index, (out, x) in enumerate(zip(outs, xs, strict=True)):
        read = [x, ys[index]] if ys else [x]
        result = wide(x) * (a if factor is None else a * factor)
        if found_inf is not None and not all(bool(tensor.isfinite().all()) for tensor in read):
            found_inf.fill_(1.0)
        out.copy_(result + b * wide(ys[index]) if ys else result)


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
    if found_inf is not None and float(found_inf) != 0:
        return
    by = (-factor if flags & MAXIMIZE else factor) / (1.0 if grad_scale is None else grad_scale)
    l2, decay = (0.0, lr * weight_decay) if flags & DECOUPLED else (weight_decay, 0.0)
    lists: list[Sequence[Any]] = [tensors or [None] * len(params) for tensors in (firsts, seconds, thirds, copies)]
    for param, grad, first, second, third, copy in zip(params, grads, *lists, strict=True):
        p = wide(param)
        g = wide(grad) * by + l2 * p
        if kind in (ADAM, LAMB):
            summed = kind == LAMB and flags & SUMMED
            m = _keep(first, wide(first) * beta1 + g * (1.0 if summed else 1.0 - beta1))
            v = _keep(second, wide(second) * beta2 + g.square() * (1.0 - beta2))
            if kind == ADAM and third is not None:
                v = _keep(third, torch.maximum(wide(third), v))
            left = (0.0, 0.0) if flags & UNCORRECTED else (beta1**step, beta2**step)
            g = m / (1.0 - left[0]) / ((v / (1.0 - left[1])).sqrt() + eps)
        elif kind == SGD:
            if first is not None:
                m = _keep(first, g if step == 1 else wide(first) * extra + g * (1.0 - beta1))
                g = g + extra * m if flags & NESTEROV else m
        elif kind == ADAGRAD:
            g = g / (_keep(first, wide(first) + g.square()).sqrt() + eps) / (1.0 + (step - 1.0) * extra)
        else:  # Lion
            between = wide(first) * beta1 + g * (1.0 - beta1)
            _keep(first, wide(first) * beta2 + g * (1.0 - beta2))
            g = between.sign()
        if kind == LAMB:
            of_decay = weight_decay if flags & DECOUPLED else 0.0
            g = _keep(third, g + of_decay * p)
            size, length = float(p.norm()), float(g.norm())
            adapts = size > 0 and length > 0 and (of_decay != 0 or flags & ALWAYS_ADAPT)
            p = p - lr * (size / length if adapts else 1.0) * g
        else:
            p = p - decay * p - lr * g
        for out in (param, copy):
            _keep(out, p)


def _keep(out: Tensor | None, value: Tensor) -> Tensor:
    """Write a tensor that may be absent; the value before it is rounded."""
    if out is not None:
        out.copy_(value)
    return value
