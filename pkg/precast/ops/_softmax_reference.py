"""What the ops of softmax compute, in plain torch, as ``_reference`` has it for the others.

No NaN arises on the way to a value that has none, so derivatives of any order are right: a row without a column to
choose from is computed as if all its scores were equal, and replaced.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scaled_softmax(x: Tensor, scale: float) -> Tensor:
    """``softmax(scale * x)`` over the last dimension, rounded once."""
    return torch.softmax(_wide(x) * scale, -1).to(x.dtype)


def scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float, masked_value: float, uniform: bool) -> Tensor:
    """The same with ``masked_value`` in the place of scaled scores whose mask is not zero."""
    masked = mask != 0
    full = masked.all(-1, keepdim=True)
    z = (_wide(x) * scale).masked_fill(masked, masked_value)
    y = torch.softmax(z.masked_fill(full, 0.0), -1)
    return (y if uniform else y.masked_fill(full, 0.0)).to(x.dtype)


def scaled_aligned_causal_softmax(x: Tensor, scale: float) -> Tensor:
    """The same over the columns up to the diagonal that ends in the last corner; zero behind it."""
    behind = _behind_diagonal(x)
    full = behind.all(-1, keepdim=True)
    z = (_wide(x) * scale).masked_fill(behind, -torch.inf)
    return torch.softmax(z.masked_fill(full, 0.0), -1).masked_fill(behind, 0.0).to(x.dtype)


def scaled_softmax_backward(grad: Tensor, y: Tensor, scale: float, causal: bool) -> Tensor:
    """The gradient for ``x``, from the result ``y``."""
    slope, wide = _wide(grad), _wide(y)
    if causal:
        behind = _behind_diagonal(y)
        slope, wide = slope.masked_fill(behind, 0.0), wide.masked_fill(behind, 0.0)
    dot = (slope * wide).sum(-1, keepdim=True)
    return (scale * (wide * (slope - dot))).to(y.dtype)


def _behind_diagonal(x: Tensor) -> Tensor:
    queries, columns = x.shape[-2:]
    last = torch.arange(queries, device=x.device) + (columns - queries)
    return torch.arange(columns, device=x.device) > last.unsqueeze(-1)


def _wide(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.float()
