"""What references share. They are the oracle of the tests, and the way through transforms.

A reference is differentiable to any order and works under ``torch.func``, so its op falls back to it wherever a tangent
or a transform is present. It computes in float32, or in float64 when the input is float64: given float64 copies of
rounded inputs it is the exact answer to compare with.
"""

from __future__ import annotations

import torch
from torch import Tensor


def wide(t: Tensor) -> Tensor:
    """In float32, or as it is in float64."""
    return t if t.dtype == torch.float64 else t.float()


def reciprocal_rms(wide: Tensor, eps: float) -> Tensor:
    """One over the root of the mean square of each row."""
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def over_rows(terms: Tensor) -> Tensor:
    """The sum over all dimensions but the last; of one row alone, a tensor of its own."""
    return terms.flatten(0, -2).sum(0) if terms.dim() > 1 else terms.clone()
