"""The gated activations and their gradients in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from precast.ops._reference import wide
from precast.ops.activations import GatedKind


def gated_activation(x: Tensor, kind: int) -> Tensor:
    """``activation(gate) * factor`` for the two halves of the last dimension; the activation is rounded as well."""
    gate, factor = _halves(x, kind)
    return _activation(gate, kind) * factor


def gated_activation_backward(grad: Tensor, x: Tensor, kind: int) -> Tensor:
    """The gradient for ``x``; rounding in the forward counts as the identity."""
    gate, factor = _halves(wide(x), kind)
    slope = wide(grad)
    value = _activation(gate, kind)
    both = (slope * factor * _activation_slope(gate, kind), slope * value)
    return torch.cat(both[::-1] if kind == GatedKind.MUL_AND_SILU else both, -1).to(x.dtype)


def _halves(x: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """The half that goes through the activation, and the half that multiplies it."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return (second, first) if kind == GatedKind.MUL_AND_SILU else (first, second)


def _activation(gate: Tensor, kind: int) -> Tensor:
    if kind == GatedKind.GELU_AND_MUL:
        return torch.nn.functional.gelu(gate)
    if kind == GatedKind.GELU_TANH_AND_MUL:
        return torch.nn.functional.gelu(gate, approximate="tanh")
    return torch.nn.functional.silu(gate)


def _activation_slope(gate: Tensor, kind: int) -> Tensor:
    """The derivative, in differentiable ops."""
    if kind == GatedKind.GELU_AND_MUL:
        density = torch.exp(gate.square() * -0.5) * math.sqrt(0.5 / math.pi)
        return 0.5 * (1 + torch.erf(gate * math.sqrt(0.5))) + gate * density
    if kind == GatedKind.GELU_TANH_AND_MUL:
        scale, cubic = math.sqrt(2 / math.pi), 0.044715
        t = torch.tanh(scale * (gate + cubic * gate.pow(3)))
        return 0.5 * (1 + t) + 0.5 * gate * (1 - t.square()) * scale * (1 + 3 * cubic * gate.square())
    s = torch.sigmoid(gate)
    return s * (1 + gate * (1 - s))
