"""The softmax ops in plain torch, differentiable to any order.

A fully masked row is computed as if all its scores were equal, and then replaced. So no intermediate NaN arises, and
derivatives of any order are right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from precast.ops._reference import wide


def scaled_softmax(x: Tensor, scale: float) -> Tensor:
    """``softmax(scale * x)`` over the last dimension, rounded once."""
    return torch.softmax(wide(x) * scale, -1).to(x.dtype)


def scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float, masked_value: float, uniform: bool) -> Tensor:
    """The same with ``masked_value`` instead of the scaled scores whose mask is not zero."""
    masked = mask != 0
    full = masked.all(-1, keepdim=True)
    z = (wide(x) * scale).masked_fill(masked, masked_value)
    y = torch.softmax(z.masked_fill(full, 0.0), -1)
    return (y if uniform else y.masked_fill(full, 0.0)).to(x.dtype)


def scaled_upper_triang_masked_softmax(x: Tensor, scale: float) -> Tensor:
    """The same over the columns up to the diagonal of a square, where both causal softmaxes agree."""
    return scaled_aligned_causal_softmax(x, scale)


def scaled_aligned_causal_softmax(x: Tensor, scale: float) -> Tensor:
    """The same over the columns up to the diagonal that ends in the last corner; zero to the right of it."""
    behind = _behind_diagonal(x)
    full = behind.all(-1, keepdim=True)
    z = (wide(x) * scale).masked_fill(behind, -torch.inf)
    return torch.softmax(z.masked_fill(full, 0.0), -1).masked_fill(behind, 0.0).to(x.dtype)


def scaled_softmax_backward(grad: Tensor, y: Tensor, scale: float, causal: bool) -> Tensor:
    """The gradient for ``x``, from the result ``y``."""
    slope, shares = wide(grad), wide(y)
    if causal:
        behind = _behind_diagonal(y)
        slope, shares = slope.masked_fill(behind, 0.0), shares.masked_fill(behind, 0.0)
    dot = (slope * shares).sum(-1, keepdim=True)
    return (scale * (shares * (slope - dot))).to(y.dtype)


def _behind_diagonal(x: Tensor) -> Tensor:
    queries, columns = x.shape[-2:]
    last = torch.arange(queries, device=x.device) + (columns - queries)
    return torch.arange(columns, device=x.device) > last.unsqueeze(-1)
