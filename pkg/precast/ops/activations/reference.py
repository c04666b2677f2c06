"""The activations and their gradients in plain torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from precast.ops._reference import wide
from precast.ops.activations import GatedKind

_TANH = (GatedKind.GELU_TANH_AND_MUL, GatedKind.GELU_NEW)
_SWISH = (GatedKind.SWIGLUOAI_AND_MUL, GatedKind.GELU_QUICK)
_FAR = 1000.0  # beyond it a sigmoid is 0 or 1 in float64 too, and products with its slope are zero


def gated_activation(x: Tensor, kind: int, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    """``activation(gate) * factor`` for the gates and factors in ``x``."""
    return _product(*_halves(x, kind), kind, alpha, limit)


def activation(x: Tensor, up: Tensor | None, kind: int, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    """The same for two tensors, or for gates alone."""
    return _product(*_swapped(x, up, kind), kind, alpha, limit)


def gated_activation_backward(grad: Tensor, x: Tensor, kind: int, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    """The gradient for ``x``; rounding in the forward counts as the identity."""
    both = _swapped(*_gradients(grad, *_halves(x, kind), kind, alpha, limit), kind)
    if kind == GatedKind.SWIGLUOAI_AND_MUL:
        return torch.stack(both, -1).flatten(-2).to(x.dtype)
    return torch.cat(both, -1).to(x.dtype)


def activation_backward(
    grad: Tensor, x: Tensor, up: Tensor | None, kind: int, alpha: float = 0.0, limit: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The gradients for ``x`` and ``up``; the second is empty without ``up``."""
    first, second = _swapped(*_gradients(grad, *_swapped(x, up, kind), kind, alpha, limit), kind)
    return first.to(x.dtype), x.new_empty(0) if up is None else second.to(x.dtype)


def _halves(x: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """The gates, and the factors that multiply them."""
    half = x.shape[-1] // 2
    if kind == GatedKind.SWIGLUOAI_AND_MUL:
        return x[..., ::2], x[..., 1::2]
    return _swapped(x[..., :half], x[..., half:], kind)


def _swapped(first: Tensor, second: Any, kind: int) -> tuple[Tensor, Any]:
    return (second, first) if kind == GatedKind.MUL_AND_SILU else (first, second)


def _product(gate: Tensor, factor: Tensor | None, kind: int, alpha: float, limit: float) -> Tensor:
    if kind == GatedKind.SWIGLUOAI_AND_MUL:  # rounded once
        assert factor is not None
        gate_part, factor_part = _activation(wide(gate), kind, alpha, limit), wide(factor).clamp(-limit, limit) + 1
        return (gate_part * factor_part).to(gate.dtype)
    if factor is None:
        return _activation(wide(gate), kind, alpha, limit).to(gate.dtype)
    return _activation(gate, kind, alpha, limit) * factor


def _gradients(
    grad: Tensor, gate: Tensor, factor: Tensor | None, kind: int, alpha: float, limit: float
) -> tuple[Tensor, Tensor]:
    grad, gate = wide(grad), wide(gate)
    slope = grad * _activation_slope(gate, kind, alpha, limit)
    value = grad * _activation(gate, kind, alpha, limit)
    if factor is None:
        return slope, value
    factor = wide(factor)
    if kind == GatedKind.SWIGLUOAI_AND_MUL:
        return slope * (factor.clamp(-limit, limit) + 1), value * (factor.abs() <= limit)
    return slope * factor, value


def _activation(gate: Tensor, kind: int, alpha: float, limit: float) -> Tensor:
    if kind == GatedKind.GELU_AND_MUL:
        return torch.nn.functional.gelu(gate)
    if kind in _TANH:
        return torch.nn.functional.gelu(gate, approximate="tanh")
    if kind == GatedKind.FATRELU_AND_MUL:
        return torch.nn.functional.threshold(gate, alpha, 0.0)
    if kind == GatedKind.SWIGLUOAI_AND_MUL:
        gate = gate.clamp(max=limit)
    if kind in _SWISH:
        return gate * torch.sigmoid(alpha * gate)
    return torch.nn.functional.silu(gate)


def _activation_slope(gate: Tensor, kind: int, alpha: float, limit: float) -> Tensor:
    """The derivative, in differentiable ops."""
    if kind == GatedKind.GELU_AND_MUL:
        density = torch.exp(gate.square() * -0.5) * math.sqrt(0.5 / math.pi)
        return 0.5 * (1 + torch.erf(gate * math.sqrt(0.5))) + gate * density
    if kind in _TANH:
        scale, cubic = math.sqrt(2 / math.pi), 0.044715
        t = torch.tanh(scale * (gate + cubic * gate.pow(3)))
        near = gate.clamp(-_FAR, _FAR)
        return 0.5 * (1 + t) + 0.5 * near * (1 - t.square()) * scale * (1 + 3 * cubic * near.square())
    if kind == GatedKind.FATRELU_AND_MUL:
        return (~(gate <= alpha)).to(gate.dtype)
    if kind in _SWISH:
        inside = ~(gate > limit) if kind == GatedKind.SWIGLUOAI_AND_MUL else torch.ones_like(gate, dtype=torch.bool)
        gate = gate.clamp(max=limit) if kind == GatedKind.SWIGLUOAI_AND_MUL else gate
        s = torch.sigmoid(alpha * gate)
        return torch.where(inside, s * (1 + (alpha * gate).clamp(-_FAR, _FAR) * (1 - s)), 0)
    s = torch.sigmoid(gate)
    return s * (1 + gate * (1 - s))
