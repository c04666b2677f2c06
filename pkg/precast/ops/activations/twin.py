"""The gated activations and their gradients in Triton."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from precast.ops._twin_rows import as_rows, like, on
from precast.ops.activations import GatedKind

_ERF, _TANH = tl.constexpr(GatedKind.GELU_AND_MUL), tl.constexpr(GatedKind.GELU_TANH_AND_MUL)
_SQRT_HALF = tl.constexpr(math.sqrt(0.5))
_DENSITY = tl.constexpr(math.sqrt(0.5 / math.pi))
_TWICE_SCALE, _CUBIC = tl.constexpr(2 * math.sqrt(2 / math.pi)), tl.constexpr(0.044715)
_CUBIC_SLOPE = tl.constexpr(3 * 0.044715)


@triton.jit  # type: ignore[untyped-decorator]
def _sigmoid(value: tl.tensor) -> tl.tensor:
    return 1.0 / (1.0 + tl.exp(-value))


@triton.jit  # type: ignore[untyped-decorator]
def _activation(gate: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """The activation in float32. ``(1 + tanh(u)) / 2`` is the sigmoid of ``2 * u``."""
    if kind == _ERF:
        result = 0.5 * gate * (1.0 + tl.erf(gate * _SQRT_HALF))
    elif kind == _TANH:
        result = gate * _sigmoid((gate + gate * gate * gate * _CUBIC) * _TWICE_SCALE)
    else:
        result = gate * _sigmoid(gate)
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _derivative(gate: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    if kind == _ERF:
        result = 0.5 * (1.0 + tl.erf(gate * _SQRT_HALF)) + gate * _DENSITY * tl.exp(-0.5 * gate * gate)
    elif kind == _TANH:
        s = _sigmoid((gate + gate * gate * gate * _CUBIC) * _TWICE_SCALE)
        result = s + gate * s * (1.0 - s) * (1.0 + gate * gate * _CUBIC_SLOPE) * _TWICE_SCALE
    else:
        s = _sigmoid(gate)
        result = s * (1.0 + gate * (1.0 - s))
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _place(half: tl.tensor, block: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The row of this program, and its columns within each half."""
    blocks = tl.cdiv(half, block)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    return row, (tl.program_id(0) % blocks) * block + tl.arange(0, block)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(
    x: tl.tensor,
    y: tl.tensor,
    stride: tl.tensor,
    half: tl.tensor,
    gate_at: tl.tensor,
    factor_at: tl.tensor,
    kind: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row, columns = _place(half, block)
    inside = columns < half
    gate = tl.load(x + row * stride + gate_at + columns, mask=inside, other=0.0)
    factor = tl.load(x + row * stride + factor_at + columns, mask=inside, other=0.0)
    active = _activation(gate.to(tl.float32), kind).to(gate.dtype)  # rounded before the product, as by the op
    result = active.to(tl.float32) * factor.to(tl.float32)
    tl.store(y + row * half + columns, result.to(y.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(
    grad: tl.tensor,
    x: tl.tensor,
    grad_x: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
    half: tl.tensor,
    gate_at: tl.tensor,
    factor_at: tl.tensor,
    kind: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row, columns = _place(half, block)
    inside = columns < half
    slope = tl.load(grad + row * grad_stride + columns, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x + row * stride + gate_at + columns, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(x + row * stride + factor_at + columns, mask=inside, other=0.0).to(tl.float32)
    out = grad_x + row * 2 * half
    of_gate = slope * factor * _derivative(gate, kind)
    tl.store(out + gate_at + columns, of_gate.to(grad_x.dtype.element_ty), mask=inside)
    of_factor = slope * _activation(gate, kind)
    tl.store(out + factor_at + columns, of_factor.to(grad_x.dtype.element_ty), mask=inside)


def gated_activation(x: Tensor, kind: int) -> Tensor:
    """The same as the op."""
    half = x.shape[-1] // 2
    y = torch.empty(*x.shape[:-1], half, dtype=x.dtype, device=x.device)
    if y.numel() > 0:
        rows, stride = as_rows(x)
        with on(x):
            grid, shape = _launch(rows.shape[0], half)
            _forward[grid](rows, y, stride, half, *_halves(half, kind), kind=kind, **shape)
    return y


def gated_activation_backward(grad: Tensor, x: Tensor, kind: int) -> Tensor:
    """The same as the op."""
    grad_x = like(x)
    if x.numel() > 0:
        (rows, stride), (slopes, grad_stride) = as_rows(x), as_rows(grad)
        half = x.shape[-1] // 2
        with on(x):
            grid, shape = _launch(rows.shape[0], half)
            _backward[grid](slopes, rows, grad_x, grad_stride, stride, half, *_halves(half, kind), kind=kind, **shape)
    return grad_x


def _halves(half: int, kind: int) -> tuple[int, int]:
    """The offsets of the gate and of the other factor in a row."""
    return (half, 0) if kind == GatedKind.MUL_AND_SILU else (0, half)


def _launch(rows: int, half: int) -> tuple[tuple[int], dict[str, int]]:
    block = min(triton.next_power_of_2(half), 1024)
    return (rows * triton.cdiv(half, block),), {"block": block}
