"""The ops over lists in plain torch, except for the optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from precast.ops._reference import wide


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
