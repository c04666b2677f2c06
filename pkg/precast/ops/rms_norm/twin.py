"""RMSNorm and its gradients in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from precast.ops._twin_rows import MOST_COLUMNS, as_rows, block_of, like, on, sums_over_rows
from precast.ops.rms_norm import GEMMA, LLAMA

_LLAMA, _GEMMA = tl.constexpr(LLAMA), tl.constexpr(GEMMA)


@triton.jit  # type: ignore[untyped-decorator]
def _sum(
    x: tl.tensor,
    residual: tl.tensor,
    offsets: tl.tensor,
    residual_offsets: tl.tensor,
    inside: tl.tensor,
    added: tl.constexpr,
) -> tl.tensor:
    value = tl.load(x + offsets, mask=inside, other=0.0)
    if added:  # rounded to the dtype of the stored sum
        more = tl.load(residual + residual_offsets, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
    return value


@triton.jit  # type: ignore[untyped-decorator]
def _scaled(
    value: tl.tensor, factor: tl.tensor, weight: tl.tensor, columns: tl.tensor, inside: tl.tensor, casting: tl.constexpr
) -> tl.tensor:
    normal = value.to(tl.float32) * factor
    if casting == _LLAMA:
        normal = normal.to(value.dtype).to(tl.float32)
    by = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if casting == _GEMMA:
        by += 1.0
    return (normal * by).to(value.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    hidden: tl.tensor,
    eps: tl.tensor,
    casting: tl.constexpr,
    added: tl.constexpr,
    block: tl.constexpr,
    whole: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    x += row * x_stride
    residual += row * residual_stride
    y += row * hidden
    total += row * hidden
    if whole:
        inside = columns < hidden
        value = _sum(x, residual, columns, columns, inside, added)
        wide = value.to(tl.float32)
        factor = tl.rsqrt(tl.sum(wide * wide, 0) / hidden + eps)
        if added:
            tl.store(total + columns, value, mask=inside)
        tl.store(y + columns, _scaled(value, factor, weight, columns, inside, casting), mask=inside)
    else:
        squares = tl.zeros((block,), tl.float32)
        for start in range(0, hidden, block):
            here = start + columns
            wide = _sum(x, residual, here, here, here < hidden, added).to(tl.float32)
            squares += wide * wide
        factor = tl.rsqrt(tl.sum(squares, 0) / hidden + eps)
        for start in range(0, hidden, block):
            here = start + columns
            inside = here < hidden
            value = _sum(x, residual, here, here, inside, added)
            if added:
                tl.store(total + here, value, mask=inside)
            tl.store(y + here, _scaled(value, factor, weight, here, inside, casting), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _slope(
    grad: tl.tensor, weight: tl.tensor, columns: tl.tensor, inside: tl.tensor, casting: tl.constexpr
) -> tl.tensor:
    by = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if casting == _GEMMA:
        by += 1.0
    return tl.load(grad + columns, mask=inside, other=0.0).to(tl.float32) * by


@triton.jit  # type: ignore[untyped-decorator]
def _backward(
    grad: tl.tensor,
    more: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    grad_x: tl.tensor,
    factors: tl.tensor,
    grad_stride: tl.tensor,
    more_stride: tl.tensor,
    x_stride: tl.tensor,
    hidden: tl.tensor,
    eps: tl.tensor,
    casting: tl.constexpr,
    added: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    grad += row * grad_stride
    more += row * more_stride
    x += row * x_stride
    grad_x += row * hidden
    squares = tl.zeros((block,), tl.float32)
    products = tl.zeros((block,), tl.float32)
    for start in range(0, hidden, block):
        here = start + columns
        inside = here < hidden
        value = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
        squares += value * value
        products += value * _slope(grad, weight, here, inside, casting)
    factor = tl.rsqrt(tl.sum(squares, 0) / hidden + eps)
    projection = tl.sum(products, 0) * factor / hidden
    tl.store(factors + row, factor)
    for start in range(0, hidden, block):
        here = start + columns
        inside = here < hidden
        value = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
        result = factor * (_slope(grad, weight, here, inside, casting) - value * factor * projection)
        if added:
            result += tl.load(more + here, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x + here, result.to(grad_x.dtype.element_ty), mask=inside)


def _normalised(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, casting: int) -> tuple[Tensor, Tensor]:
    y, total = like(x), like(x) if residual is not None else x
    if x.numel() > 0:
        (rows, stride), (more, more_stride) = as_rows(x), as_rows(x if residual is None else residual)
        with on(x):
            _forward[(rows.shape[0],)](
                *(rows, more, weight.contiguous(), y, total, stride, more_stride, rows.shape[1], eps),
                casting=casting,
                added=residual is not None,
                whole=rows.shape[1] <= MOST_COLUMNS,
                **block_of(rows.shape[1]),
            )
    return y, total


def rms_norm(x: Tensor, weight: Tensor, eps: float, casting: int) -> Tensor:
    """The same as the op."""
    return _normalised(x, None, weight, eps, casting)[0]


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, casting: int) -> tuple[Tensor, Tensor]:
    """The same as the op."""
    return _normalised(x, residual, weight, eps, casting)


def fused_add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float, casting: int) -> None:
    """The same as the op, through new tensors."""
    if x.untyped_storage().data_ptr() == residual.untyped_storage().data_ptr() and x.numel() > 0:
        raise RuntimeError(
            "fused_add_rms_norm_: x and residual share their memory, and both would be written; needed two tensors"
        )
    y, total = _normalised(x, residual, weight, eps, casting)
    residual.copy_(total)
    x.copy_(y)


def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float, casting: int) -> tuple[Tensor, Tensor]:
    """The same as the op."""
    return _gradients(grad, None, x, weight, eps, casting)


def fused_add_rms_norm_backward(
    grad_y: Tensor, grad_sum: Tensor, total: Tensor, weight: Tensor, eps: float, casting: int
) -> tuple[Tensor, Tensor]:
    """The same as the op."""
    return _gradients(grad_y, grad_sum, total, weight, eps, casting)


def _gradients(
    grad: Tensor, more: Tensor | None, x: Tensor, weight: Tensor, eps: float, casting: int
) -> tuple[Tensor, Tensor]:
    grad_x = like(x)
    if x.numel() == 0:
        return grad_x, torch.zeros_like(weight, memory_format=torch.contiguous_format)
    (rows, stride), (slopes, grad_stride) = as_rows(x), as_rows(grad)
    extra, extra_stride = as_rows(grad if more is None else more)
    factors = torch.empty(rows.shape[0], device=x.device, dtype=torch.float32)
    with on(x):
        _backward[(rows.shape[0],)](
            *(slopes, extra, rows, weight.contiguous(), grad_x, factors, grad_stride, extra_stride, stride),
            *(rows.shape[1], eps),
            casting=casting,
            added=more is not None,
            **block_of(rows.shape[1]),
        )
    grad_weight, _ = sums_over_rows(slopes, rows, torch.zeros_like(factors), factors, True, False)
    return grad_x, grad_weight.to(weight.dtype)
