"""Checks and memory layouts that all image ops share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from precast.ops import _checks

LINEAR, LEAKY = 0, 2  # the number of "linear", and the last one of straight lines
FLOAT_TYPES = (*_checks.FLOAT_TYPES, torch.float64)


def check_dtype(op: str, x: Tensor) -> None:
    _checks.require(
        x.dtype in FLOAT_TYPES,
        lambda: f"{op}: x is {_checks.dtype_name(x)}; needed float32, float16, bfloat16 or float64",
    )


def is_channels_last(x: Tensor) -> bool:
    """Whether dimension 1 is the innermost in memory and the tensor is not contiguous as well."""
    if x.dim() not in (4, 5) or x.is_contiguous():
        return False
    return x.is_contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def empty_ordered(sizes: Sequence[int], last: bool, like: Tensor) -> Tensor:
    """An uninitialised tensor with the dtype and device of ``like``; ``last``: in the memory order of channels_last."""
    if not last:
        return like.new_empty(sizes)
    memory_format = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
    return torch.empty(sizes, dtype=like.dtype, device=like.device, memory_format=memory_format)


def from_output(x: Tensor, bias: Tensor | None, act: int, alpha: float, gain: float) -> bool:
    """Whether the sign of the result of ``bias_act`` is that of its input, as for straight lines that rise.

    A positive input must not give a result that underflows to zero, as float16 results with a float32 bias may.
    """
    if not has_sign(act, alpha, gain):
        return False
    narrower = x.dtype == torch.float16 and bias is not None and bias.dtype != x.dtype
    return act == LINEAR or (gain >= 1 and not narrower)


def has_sign(act: int, alpha: float, gain: float) -> bool:
    """Whether the result is positive where the input was, and only there, if nothing underflows."""
    return act <= LEAKY and gain > 0 and (act != LEAKY or alpha >= 0)
