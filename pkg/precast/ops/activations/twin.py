"""The activations and their gradients in Triton."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from precast.ops._twin_rows import as_rows, like, on
from precast.ops.activations import GatedKind

_ERF, _TANH = tl.constexpr(GatedKind.GELU_AND_MUL), tl.constexpr(GatedKind.GELU_TANH_AND_MUL)
_NEW, _QUICK = tl.constexpr(GatedKind.GELU_NEW), tl.constexpr(GatedKind.GELU_QUICK)
_FATRELU, _SWIGLUOAI = tl.constexpr(GatedKind.FATRELU_AND_MUL), tl.constexpr(GatedKind.SWIGLUOAI_AND_MUL)
_SQRT_HALF = tl.constexpr(math.sqrt(0.5))
_DENSITY = tl.constexpr(math.sqrt(0.5 / math.pi))
_TWICE_SCALE, _CUBIC = tl.constexpr(2 * math.sqrt(2 / math.pi)), tl.constexpr(0.044715)
_CUBIC_SLOPE = tl.constexpr(3 * 0.044715)


@triton.jit  # type: ignore[untyped-decorator]
def _sigmoid(value: tl.tensor) -> tl.tensor:
    return 1.0 / (1.0 + tl.exp(-value))


@triton.jit  # type: ignore[untyped-decorator]
def _activation(gate: tl.tensor, alpha: tl.tensor, limit: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """The activation in float32. ``(1 + tanh(u)) / 2`` is the sigmoid of ``2 * u``."""
    if kind == _ERF:
        result = 0.5 * gate * (1.0 + tl.erf(gate * _SQRT_HALF))
    elif kind == _TANH or kind == _NEW:  # noqa: SIM109 - Triton
        result = gate * _sigmoid((gate + gate * gate * gate * _CUBIC) * _TWICE_SCALE)
    elif kind == _FATRELU:
        result = tl.where(gate <= alpha, 0.0, gate)
    elif kind == _SWIGLUOAI:
        gate = tl.where(gate > limit, limit, gate)
        result = gate * _sigmoid(gate * alpha)
    elif kind == _QUICK:
        result = gate * _sigmoid(gate * alpha)
    else:
        result = gate * _sigmoid(gate)
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _bounded(value: tl.tensor) -> tl.tensor:
    """The value, finite: beyond the bound it is a factor of zero."""
    return tl.where(value > 300.0, 300.0, tl.where(value < -300.0, -300.0, value))


@triton.jit  # type: ignore[untyped-decorator]
def _derivative(gate: tl.tensor, alpha: tl.tensor, limit: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    if kind == _ERF:
        result = 0.5 * (1.0 + tl.erf(gate * _SQRT_HALF)) + gate * _DENSITY * tl.exp(-0.5 * gate * gate)
    elif kind == _TANH or kind == _NEW:  # noqa: SIM109 - Triton
        s = _sigmoid((gate + gate * gate * gate * _CUBIC) * _TWICE_SCALE)
        steep = _bounded(gate * (1.0 + gate * gate * _CUBIC_SLOPE) * _TWICE_SCALE)
        result = s * (1.0 + steep * (1.0 - s))
    elif kind == _FATRELU:
        result = tl.where(gate <= alpha, 0.0, 1.0)
    elif kind == _SWIGLUOAI or kind == _QUICK:  # noqa: SIM109 - Triton
        s = _sigmoid(gate * alpha)
        result = s * (1.0 + _bounded(alpha * gate) * (1.0 - s))
        if kind == _SWIGLUOAI:
            result = tl.where(gate > limit, 0.0, result)
    else:
        s = _sigmoid(gate)
        result = s * (1.0 + gate * (1.0 - s))
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _clamped(factor: tl.tensor, limit: tl.tensor) -> tl.tensor:
    return tl.where(factor > limit, limit, tl.where(factor < -limit, -limit, factor))


@triton.jit  # type: ignore[untyped-decorator]
def _place(half: tl.tensor, block: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The row of this program, and its columns within each half."""
    blocks = tl.cdiv(half, block)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    return row, (tl.program_id(0) % blocks) * block + tl.arange(0, block)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(
    gates: tl.tensor,
    factors: tl.tensor,
    y: tl.tensor,
    gate_stride: tl.tensor,
    factor_stride: tl.tensor,
    half: tl.tensor,
    gate_at: tl.tensor,
    factor_at: tl.tensor,
    alpha: tl.tensor,
    limit: tl.tensor,
    step: tl.constexpr,
    alone: tl.constexpr,
    kind: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row, columns = _place(half, block)
    inside = columns < half
    gate = tl.load(gates + row * gate_stride + gate_at + columns * step, mask=inside, other=0.0)
    result = _activation(gate.to(tl.float32), alpha, limit, kind)
    if not alone:
        factor = tl.load(factors + row * factor_stride + factor_at + columns * step, mask=inside, other=0.0)
        if kind == _SWIGLUOAI:
            result = result * (_clamped(factor.to(tl.float32), limit) + 1.0)
        else:  # rounded before the product, as by the op
            result = result.to(gate.dtype).to(tl.float32) * factor.to(tl.float32)
    tl.store(y + row * half + columns, result.to(y.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(
    grad: tl.tensor,
    gates: tl.tensor,
    factors: tl.tensor,
    grad_gates: tl.tensor,
    grad_factors: tl.tensor,
    grad_stride: tl.tensor,
    gate_stride: tl.tensor,
    factor_stride: tl.tensor,
    result_stride: tl.tensor,
    half: tl.tensor,
    gate_at: tl.tensor,
    factor_at: tl.tensor,
    alpha: tl.tensor,
    limit: tl.tensor,
    step: tl.constexpr,
    alone: tl.constexpr,
    kind: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row, columns = _place(half, block)
    inside = columns < half
    slope = tl.load(grad + row * grad_stride + columns, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gates + row * gate_stride + gate_at + columns * step, mask=inside, other=0.0).to(tl.float32)
    of_gate = slope * _derivative(gate, alpha, limit, kind)
    if not alone:
        there = factors + row * factor_stride + factor_at + columns * step
        factor = tl.load(there, mask=inside, other=0.0).to(tl.float32)
        of_factor = slope * _activation(gate, alpha, limit, kind)
        if kind == _SWIGLUOAI:
            bounded = _clamped(factor, limit)
            of_factor = tl.where(bounded == factor, of_factor, 0.0)
            factor = bounded + 1.0
        of_gate = slope * factor * _derivative(gate, alpha, limit, kind)
        out = grad_factors + row * result_stride + factor_at + columns * step
        tl.store(out, of_factor.to(grad_factors.dtype.element_ty), mask=inside)
    out = grad_gates + row * result_stride + gate_at + columns * step
    tl.store(out, of_gate.to(grad_gates.dtype.element_ty), mask=inside)


def gated_activation(x: Tensor, kind: int, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    """The same as the op."""
    half = x.shape[-1] // 2
    y = torch.empty(*x.shape[:-1], half, dtype=x.dtype, device=x.device)
    if y.numel() > 0:
        rows, stride = as_rows(x)
        with on(x):
            grid, shape = _launch(rows.shape[0], half)
            places, step = _halves(half, kind)
            options = {"step": step, "alone": False, "kind": kind, **shape}
            _forward[grid](rows, rows, y, stride, stride, half, *places, alpha, limit, **options)
    return y


def gated_activation_backward(grad: Tensor, x: Tensor, kind: int, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    """The same as the op."""
    grad_x = like(x)
    if x.numel() > 0:
        (rows, stride), (slopes, grad_stride) = as_rows(x), as_rows(grad)
        half = x.shape[-1] // 2
        with on(x):
            grid, shape = _launch(rows.shape[0], half)
            places, step = _halves(half, kind)
            options = {"step": step, "alone": False, "kind": kind, **shape}
            strides = (grad_stride, stride, stride, 2 * half)
            _backward[grid](slopes, rows, rows, grad_x, grad_x, *strides, half, *places, alpha, limit, **options)
    return grad_x


def activation(x: Tensor, up: Tensor | None, kind: int, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    """The same as the op."""
    y = like(x)
    if y.numel() > 0:
        gate, factor = _ordered(x, x if up is None else up, kind)
        (gates, gate_stride), (factors, factor_stride) = as_rows(gate), as_rows(factor)
        with on(x):
            grid, shape = _launch(gates.shape[0], x.shape[-1])
            options = {"step": 1, "alone": up is None, "kind": kind, **shape}
            numbers = (gate_stride, factor_stride, x.shape[-1], 0, 0, alpha, limit)
            _forward[grid](gates, factors, y, *numbers, **options)
    return y


def activation_backward(
    grad: Tensor, x: Tensor, up: Tensor | None, kind: int, alpha: float = 0.0, limit: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The same as the op."""
    grad_x, grad_up = like(x), x.new_empty(0) if up is None else like(up)
    if x.numel() > 0:
        gate, factor = _ordered(x, x if up is None else up, kind)
        (slopes, grad_stride), (gates, gate_stride), (factors, factor_stride) = map(as_rows, (grad, gate, factor))
        with on(x):
            grid, shape = _launch(gates.shape[0], x.shape[-1])
            options = {"step": 1, "alone": up is None, "kind": kind, **shape}
            strides = (grad_stride, gate_stride, factor_stride, x.shape[-1])
            results = _ordered(grad_x, grad_up, kind)
            _backward[grid](slopes, gates, factors, *results, *strides, x.shape[-1], 0, 0, alpha, limit, **options)
    return grad_x, grad_up


def _ordered(x: Tensor, up: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """The gates and the factors."""
    return (up, x) if kind == GatedKind.MUL_AND_SILU else (x, up)


def _halves(half: int, kind: int) -> tuple[tuple[int, int], int]:
    """The offsets of the first gate and of the first factor in a row, and the distance from one gate to the next."""
    if kind == GatedKind.SWIGLUOAI_AND_MUL:
        return (0, 1), 2
    return ((half, 0) if kind == GatedKind.MUL_AND_SILU else (0, half)), 1


def _launch(rows: int, half: int) -> tuple[tuple[int], dict[str, int]]:
    block = min(triton.next_power_of_2(half), 1024)
    return (rows * triton.cdiv(half, block),), {"block": block}
