"""Helpers for the Triton kernels of several families: tensors as rows, launches, and sums for the norms' gradients.

A family's ``twin.py`` implements its ops in Triton, for GPUs without kernels from ``csrc``: NVIDIA GPUs without a cubin
and without NVRTC, AMD GPUs and Intel GPUs. The functions have the names and arguments of the ops. Triton compiles them
at the first call with each kind of shape. A program processes one row, or a block of one tensor of a list. The loader
replaces a refused family by its twin and logs this; see ``_abi/twin.py``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# A row of up to this many columns stays in registers; a longer one is read again in each pass.
MOST_COLUMNS = 16384
_PARTS = 64  # the same on every GPU, so that the result does not depend on the GPU


def as_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """A nonempty tensor as rows with a contiguous last dimension; it is copied only if its layout requires it."""
    rows = tensor.reshape(-1, tensor.shape[-1])
    if rows.stride(-1) != 1 and rows.shape[-1] > 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)


def block_of(columns: int) -> dict[str, int]:
    """The number of columns that a program processes at a time, and its number of warps."""
    block = min(triton.next_power_of_2(columns), MOST_COLUMNS)
    return {"block": block, "num_warps": min(max(block // 512, 1), 16)}


def like(tensor: Tensor) -> Tensor:
    """An uninitialised contiguous tensor of the same shape."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def on(tensor: Tensor) -> Any:
    """Make the tensor's GPU current, because Triton launches there. On the CPU, Triton's interpreter runs."""
    if tensor.device.type == "cpu":
        return contextlib.nullcontext()
    return getattr(torch, tensor.device.type).device(tensor.device)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_rows(
    grad: tl.tensor,
    x: tl.tensor,
    mean: tl.tensor,
    scale: tl.tensor,
    normal_parts: tl.tensor,
    grad_parts: tl.tensor,
    grad_stride: tl.tensor,
    x_stride: tl.tensor,
    rows: tl.tensor,
    hidden: tl.tensor,
    part_rows: tl.tensor,
    of_normal: tl.constexpr,
    of_grad: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
) -> None:
    columns = tl.program_id(0) * width + tl.arange(0, width)
    part = tl.program_id(1)
    inside = columns < hidden
    normal_sum = tl.zeros((height, width), tl.float32)
    grad_sum = tl.zeros((height, width), tl.float32)
    first = part.to(tl.int64) * part_rows
    last = tl.minimum(first + part_rows, rows)
    for start in range(0, part_rows, height):
        row = first + start + tl.arange(0, height)
        there = row < last
        both = there[:, None] & inside[None, :]
        slope = tl.load(grad + row[:, None] * grad_stride + columns[None, :], mask=both, other=0.0).to(tl.float32)
        if of_grad:
            grad_sum += slope
        if of_normal:
            value = tl.load(x + row[:, None] * x_stride + columns[None, :], mask=both, other=0.0).to(tl.float32)
            middle = tl.load(mean + row, mask=there, other=0.0)
            factor = tl.load(scale + row, mask=there, other=0.0)
            # Outside the row, value - mean is not zero, but slope is.
            normal_sum += slope * ((value - middle[:, None]) * factor[:, None])
    out = part.to(tl.int64) * hidden + columns
    if of_normal:
        tl.store(normal_parts + out, tl.sum(normal_sum, 0), mask=inside)
    if of_grad:
        tl.store(grad_parts + out, tl.sum(grad_sum, 0), mask=inside)


def sums_over_rows(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, of_normal: bool, of_grad: bool
) -> tuple[Tensor, Tensor]:
    """``(grad * (x - mean) * scale).sum(0)`` and ``grad.sum(0)`` in float32; a sum that is not requested is empty.

    Each sum is computed in parts of fixed rows, so the same input gives the same bits.
    """
    rows, hidden = x.shape
    parts = [
        torch.zeros(_PARTS if wanted else 0, hidden if wanted else 0, device=x.device, dtype=torch.float32)
        for wanted in (of_normal, of_grad)
    ]
    if rows > 0 and (of_normal or of_grad):
        width, part_rows = 128, triton.cdiv(rows, _PARTS)
        grid = (triton.cdiv(hidden, width), triton.cdiv(rows, part_rows))
        with on(x):
            _sum_rows[grid](
                *(grad, x, mean, scale, *parts, grad.stride(0), x.stride(0), rows, hidden, part_rows),
                of_normal=of_normal,
                of_grad=of_grad,
                height=16,
                width=width,
            )
    return parts[0].sum(0), parts[1].sum(0)
