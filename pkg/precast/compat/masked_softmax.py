"""The softmax with a mask of the older package: ``forward``, ``backward`` and ``get_batch_per_block``."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.compat.members import kernel

__all__ = ["backward", "forward", "get_batch_per_block"]

_MASKED = -10000.0  # the older kernel's value for a masked score; a fully masked row becomes uniform


@torch.no_grad()
def forward(input: Tensor, mask: Tensor, scale: float) -> Tensor:  # noqa: A002 - a name to keep
    """``softmax(scale * input)``; masked scores (1 in ``mask``, for one or all heads) count as -10000."""
    mask = mask if mask.dtype in (torch.bool, torch.uint8) else mask.bool()
    y: Tensor = kernel("scaled_masked_softmax")(input, mask, scale, _MASKED, True)
    return y


@torch.no_grad()
def backward(output_grads: Tensor, softmax_results: Tensor, scale: float) -> Tensor:
    """The gradient for ``input``, from the result of ``forward``."""
    grad: Tensor = kernel("scaled_softmax_backward")(output_grads, softmax_results, scale, False)
    return grad


def get_batch_per_block(query_seq_len: int, key_seq_len: int, batches: int, attn_heads: int) -> int:
    """The number that the rows must be divisible by: 1, because the kernels accept every shape."""
    return 1
