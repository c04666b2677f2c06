"""The RMS norms of the older package, which write into their arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.compat.members import kernel

__all__ = ["fused_add_rms_layernorm", "rms_layernorm"]

_CAST_ONCE = 0  # the ops' casting mode with a single rounding at the end


@torch.no_grad()
def rms_layernorm(out: Tensor, input: Tensor, weight: Tensor, eps: float) -> None:  # noqa: A002 - a name to keep
    """Write the RMS norm of ``input`` over its last dimension, times ``weight``, into ``out``."""
    out.copy_(kernel("rms_norm")(input, weight, eps, _CAST_ONCE))


@torch.no_grad()
def fused_add_rms_layernorm(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:  # noqa: A002
    """``residual += input``, then ``input`` becomes the RMS norm of ``residual``; both in place."""
    kernel("fused_add_rms_norm_")(input, residual, weight, eps, _CAST_ONCE)
