"""Helpers for references. A reference is the oracle of the tests and the fallback under transforms.

A reference is differentiable to any order and works under ``torch.func``, so an op falls back to it for tangents and
transforms. It computes in float32, or in float64 for float64 inputs: with float64 copies of rounded inputs it gives
the exact answer to compare with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

_Function = TypeVar("_Function", bound=Callable[..., Any])


def wide(t: Tensor) -> Tensor:
    """Convert to float32; keep float64."""
    return t if t.dtype == torch.float64 else t.float()


def without_autocast(function: _Function) -> _Function:
    """Keep ``torch.autocast`` from rounding the operands of a function's matrix products and convolutions."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._DisableAutocast():
            return function(*args, **kwargs)

    return cast("_Function", call)


def reciprocal_rms(wide: Tensor, eps: float) -> Tensor:
    """The reciprocal root mean square of each row."""
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def over_rows(terms: Tensor) -> Tensor:
    """The sum over all dimensions but the last; for a single row, a copy."""
    return terms.flatten(0, -2).sum(0) if terms.dim() > 1 else terms.clone()
