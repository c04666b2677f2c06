"""The softmax ops and their gradient in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from precast.ops._twin_rows import MOST_COLUMNS, as_rows, block_of, like, on

_PLAIN, _MASKED, _CAUSAL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit  # type: ignore[untyped-decorator]
def _scores(
    x: tl.tensor,
    mask: tl.tensor,
    here: tl.tensor,
    columns: tl.tensor,
    last: tl.tensor,
    scale: tl.tensor,
    masked_value: tl.tensor,
    mode: tl.constexpr,
) -> tl.tensor:
    """The scaled scores of some columns, -inf outside the row, and which of them are not masked."""
    chosen = here < columns
    if mode == _CAUSAL:
        chosen = chosen & (here <= last)
    score = tl.load(x + here, mask=chosen, other=0.0).to(tl.float32) * scale
    if mode == _MASKED:
        masked = tl.load(mask + here, mask=here < columns, other=1) != 0
        score = tl.where(masked & (here < columns), masked_value, score)
        chosen = chosen & (masked == 0)
        return tl.where(here < columns, score, float("-inf")), chosen
    return tl.where(chosen, score, float("-inf")), chosen


@triton.jit  # type: ignore[untyped-decorator]
def _forward(
    x: tl.tensor,
    mask: tl.tensor,
    y: tl.tensor,
    stride: tl.tensor,
    columns: tl.tensor,
    queries: tl.tensor,
    heads: tl.tensor,
    mask_batch: tl.tensor,
    mask_head: tl.tensor,
    mask_query: tl.tensor,
    scale: tl.tensor,
    masked_value: tl.tensor,
    full_value: tl.tensor,
    mode: tl.constexpr,
    block: tl.constexpr,
    whole: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    query = row % queries
    last = query + columns - queries
    lanes = tl.arange(0, block)
    x += row * stride
    y += row * columns
    if mode == _MASKED:
        mask += (row // queries // heads) * mask_batch + (row // queries % heads) * mask_head + query * mask_query
    if whole:
        score, chosen = _scores(x, mask, lanes, columns, last, scale, masked_value, mode)
        some = tl.max(chosen.to(tl.int32), 0)
        # The maximum may ignore a NaN, but its exponential is NaN, and so are the sum and the row.
        power = tl.where(lanes < columns, tl.exp(score - tl.max(score, 0)), 0.0)
        result = power / tl.sum(power, 0)
        if mode != _PLAIN:
            result = tl.where(some > 0, result, full_value)
        if mode == _CAUSAL:
            result = tl.where(lanes <= last, result, 0.0)
        tl.store(y + lanes, result.to(y.dtype.element_ty), mask=lanes < columns)
    else:
        most = tl.full((block,), float("-inf"), tl.float32)
        chosen_any = tl.zeros((block,), tl.int32)
        for start in range(0, columns, block):
            score, chosen = _scores(x, mask, start + lanes, columns, last, scale, masked_value, mode)
            most = tl.maximum(most, score)
            chosen_any = tl.maximum(chosen_any, chosen.to(tl.int32))
        top, some = tl.max(most, 0), tl.max(chosen_any, 0)
        powers = tl.zeros((block,), tl.float32)
        for start in range(0, columns, block):
            score, chosen = _scores(x, mask, start + lanes, columns, last, scale, masked_value, mode)
            powers += tl.where(start + lanes < columns, tl.exp(score - top), 0.0)
        total = tl.sum(powers, 0)
        for start in range(0, columns, block):
            here = start + lanes
            score, chosen = _scores(x, mask, here, columns, last, scale, masked_value, mode)
            result = tl.exp(score - top) / total
            if mode != _PLAIN:
                result = tl.where(some > 0, result, full_value)
            if mode == _CAUSAL:
                result = tl.where(here <= last, result, 0.0)
            tl.store(y + here, result.to(y.dtype.element_ty), mask=here < columns)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(
    grad: tl.tensor,
    y: tl.tensor,
    grad_x: tl.tensor,
    grad_stride: tl.tensor,
    y_stride: tl.tensor,
    columns: tl.tensor,
    queries: tl.tensor,
    scale: tl.tensor,
    causal: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    end = columns
    if causal:
        end = tl.minimum(row % queries + columns - queries + 1, columns).to(tl.int32)
    lanes = tl.arange(0, block)
    grad += row * grad_stride
    y += row * y_stride
    grad_x += row * columns
    products = tl.zeros((block,), tl.float32)
    for start in range(0, columns, block):
        here = start + lanes
        slope = tl.load(grad + here, mask=here < end, other=0.0).to(tl.float32)
        products += slope * tl.load(y + here, mask=here < end, other=0.0).to(tl.float32)
    product = tl.sum(products, 0)
    for start in range(0, columns, block):
        here = start + lanes
        slope = tl.load(grad + here, mask=here < end, other=0.0).to(tl.float32)
        share = tl.load(y + here, mask=here < end, other=0.0).to(tl.float32)
        result = tl.where(here < end, scale * (share * (slope - product)), 0.0)
        tl.store(grad_x + here, result.to(grad_x.dtype.element_ty), mask=here < columns)


def _softmax(x: Tensor, scale: float, mode: int, mask: Tensor | None, value: float, uniform: bool) -> Tensor:
    y = like(x)
    if x.numel() == 0:
        return y
    rows, stride = as_rows(x)
    _, heads, queries, columns = (1,) * (4 - x.dim()) + x.shape if x.dim() <= 4 else (1, 1, *x.shape[-2:])
    marks, strides = rows, [0, 0, 0]
    if mask is not None:
        mask = mask if mask.stride(-1) == 1 else mask.contiguous()
        marks = mask.view(torch.uint8).expand(x.shape)[(None,) * (4 - x.dim())]
        strides = list(marks.stride()[:3])
    with on(x):
        _forward[(rows.shape[0],)](
            *(rows, marks, y, stride, columns, queries, heads, *strides),
            *(scale, value, 1.0 / columns if uniform else 0.0),
            mode=mode,
            whole=columns <= MOST_COLUMNS,
            **block_of(columns),
        )
    return y


def scaled_softmax(x: Tensor, scale: float) -> Tensor:
    """The same as the op."""
    return _softmax(x, scale, _PLAIN.value, None, 0.0, False)


def scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float, masked_value: float, uniform: bool) -> Tensor:
    """The same as the op."""
    return _softmax(x, scale, _MASKED.value, mask, masked_value, uniform)


def scaled_aligned_causal_softmax(x: Tensor, scale: float) -> Tensor:
    """The same as the op."""
    return _softmax(x, scale, _CAUSAL.value, None, 0.0, False)


scaled_upper_triang_masked_softmax = scaled_aligned_causal_softmax  # the same for a square


def scaled_softmax_backward(grad: Tensor, y: Tensor, scale: float, causal: bool) -> Tensor:
    """The same as the op."""
    grad_x = like(y)
    if y.numel() == 0:
        return grad_x
    (rows, stride), (slopes, grad_stride) = as_rows(y), as_rows(grad)
    columns, queries = y.shape[-1], y.shape[-2] if y.dim() > 1 else 1
    with on(y):
        _backward[(rows.shape[0],)](
            *(slopes, rows, grad_x, grad_stride, stride, columns, queries, scale), causal=causal, **block_of(columns)
        )
    return grad_x
