"""The causal softmax of the older package: ``forward`` and ``backward``."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.compat.members import kernel

__all__ = ["backward", "forward"]


@torch.no_grad()
def forward(input: Tensor, scale: float) -> Tensor:  # noqa: A002 - a name to keep
    """``softmax(scale * input)`` up to the diagonal of ``(..., s, s)``, zero to the right of it."""
    y: Tensor = kernel("scaled_upper_triang_masked_softmax")(input, scale)
    return y


@torch.no_grad()
def backward(output_grads: Tensor, softmax_results: Tensor, scale: float) -> Tensor:
    """The gradient for ``input``, from the result of ``forward``."""
    grad: Tensor = kernel("scaled_softmax_backward")(output_grads, softmax_results, scale, True)
    return grad
