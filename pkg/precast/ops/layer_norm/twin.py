"""LayerNorm and its gradients in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from precast.ops._twin_rows import as_rows, block_of, like, on, sums_over_rows


@triton.jit  # type: ignore[untyped-decorator]
def _moments(x: tl.tensor, hidden: tl.tensor, eps: tl.tensor, block: tl.constexpr) -> tl.tensor:
    """The mean and the inverse standard deviation of a row; a second pass around the mean keeps the sums small."""
    columns = tl.arange(0, block)
    sums = tl.zeros((block,), tl.float32)
    for start in range(0, hidden, block):
        here = start + columns
        sums += tl.load(x + here, mask=here < hidden, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / hidden
    squares = tl.zeros((block,), tl.float32)
    for start in range(0, hidden, block):
        here = start + columns
        inside = here < hidden
        deviation = tl.load(x + here, mask=inside, other=0.0).to(tl.float32) - mean
        squares += tl.where(inside, deviation * deviation, 0.0)
    variance = tl.sum(squares, 0) / hidden + eps
    return mean, tl.rsqrt(variance) + 0.0 * variance  # NaN if it has overflowed, not a row of zeros


@triton.jit  # type: ignore[untyped-decorator]
def _forward(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    stride: tl.tensor,
    hidden: tl.tensor,
    eps: tl.tensor,
    has_weight: tl.constexpr,
    has_bias: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    x += row * stride
    y += row * hidden
    mean, factor = _moments(x, hidden, eps, block)
    for start in range(0, hidden, block):
        here = start + columns
        inside = here < hidden
        result = (tl.load(x + here, mask=inside, other=0.0).to(tl.float32) - mean) * factor
        if has_weight:
            result *= tl.load(weight + here, mask=inside, other=0.0).to(tl.float32)
        if has_bias:
            result += tl.load(bias + here, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + here, result.to(y.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _slope(
    grad: tl.tensor, weight: tl.tensor, here: tl.tensor, inside: tl.tensor, has_weight: tl.constexpr
) -> tl.tensor:
    slope = tl.load(grad + here, mask=inside, other=0.0).to(tl.float32)
    if has_weight:
        slope *= tl.load(weight + here, mask=inside, other=0.0).to(tl.float32)
    return slope


@triton.jit  # type: ignore[untyped-decorator]
def _backward(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    grad_x: tl.tensor,
    means: tl.tensor,
    factors: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
    hidden: tl.tensor,
    eps: tl.tensor,
    has_weight: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    grad += row * grad_stride
    x += row * stride
    grad_x += row * hidden
    mean, factor = _moments(x, hidden, eps, block)
    tl.store(means + row, mean)
    tl.store(factors + row, factor)
    slopes = tl.zeros((block,), tl.float32)
    products = tl.zeros((block,), tl.float32)
    for start in range(0, hidden, block):
        here = start + columns
        inside = here < hidden
        slope = _slope(grad, weight, here, inside, has_weight)  # zero outside the row
        slopes += slope
        products += slope * ((tl.load(x + here, mask=inside, other=0.0).to(tl.float32) - mean) * factor)
    of_mean = tl.sum(slopes, 0) / hidden
    projection = tl.sum(products, 0) / hidden
    for start in range(0, hidden, block):
        here = start + columns
        inside = here < hidden
        normal = (tl.load(x + here, mask=inside, other=0.0).to(tl.float32) - mean) * factor
        result = factor * (_slope(grad, weight, here, inside, has_weight) - of_mean - normal * projection)
        tl.store(grad_x + here, result.to(grad_x.dtype.element_ty), mask=inside)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The same as the op."""
    y = like(x)
    if x.numel() == 0:
        return y
    rows, stride = as_rows(x)
    given = [rows if tensor is None else tensor.contiguous() for tensor in (weight, bias)]
    with on(x):
        _forward[(rows.shape[0],)](
            *(rows, *given, y, stride, rows.shape[1], eps),
            has_weight=weight is not None,
            has_bias=bias is not None,
            **block_of(rows.shape[1]),
        )
    return y


def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_grad: bool, bias_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as the op: a gradient that is not requested is empty."""
    grad_x = like(x)
    like_weight = x if weight is None else weight
    if x.numel() == 0:
        sizes = [x.shape[-1] if wanted else 0 for wanted in (weight_grad, bias_grad)]
        return grad_x, like_weight.new_zeros(sizes[0]), like_weight.new_zeros(sizes[1])
    (rows, stride), (slopes, grad_stride) = as_rows(x), as_rows(grad)
    means, factors = (torch.empty(rows.shape[0], device=x.device, dtype=torch.float32) for _ in range(2))
    with on(x):
        _backward[(rows.shape[0],)](
            *(slopes, rows, rows if weight is None else weight.contiguous(), grad_x, means, factors),
            *(grad_stride, stride, rows.shape[1], eps),
            has_weight=weight is not None,
            **block_of(rows.shape[1]),
        )
    of_weight, of_bias = sums_over_rows(slopes, rows, means, factors, weight_grad, bias_grad)
    return grad_x, of_weight.to(like_weight.dtype), of_bias.to(like_weight.dtype)
