"""RMS norm, layer norm and their gradients in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.ops._reference import over_rows, reciprocal_rms, wide
from precast.ops.norm._rms_norm import GEMMA, LLAMA


def rms_norm(x: Tensor, weight: Tensor, eps: float, casting: int) -> Tensor:
    """``x / sqrt(mean(x**2, -1) + eps) * weight``, rounded to ``x``'s dtype where ``casting`` says so."""
    rows = wide(x)
    normal = rows * reciprocal_rms(rows, eps)
    if casting == LLAMA:
        return (normal.to(x.dtype) * weight).to(x.dtype)
    return (normal * _scale(weight, casting)).to(x.dtype)


def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float, casting: int) -> tuple[Tensor, Tensor]:
    """Gradients for ``x`` and ``weight``; rounding in the forward counts as the identity."""
    rows, slope = wide(x), wide(grad)
    rrms = reciprocal_rms(rows, eps)
    normal = rows * rrms
    scaled = slope * _scale(weight, casting)
    grad_x = rrms * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    return grad_x.to(x.dtype), over_rows(slope * normal).to(weight.dtype)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, casting: int) -> tuple[Tensor, Tensor]:
    """``(rms_norm(sum), sum)`` where ``sum`` is ``x + residual``, rounded."""
    total = x + residual
    return rms_norm(total, weight, eps, casting), total


def fused_add_rms_norm_backward(
    grad_y: Tensor, grad_sum: Tensor, total: Tensor, weight: Tensor, eps: float, casting: int
) -> tuple[Tensor, Tensor]:
    """The gradient shared by ``x`` and ``residual``, and the one for ``weight``; ``total`` is the saved sum."""
    grad_x, grad_weight = rms_norm_backward(wide(grad_y), wide(total), wide(weight), eps, casting)
    return (grad_x + wide(grad_sum)).to(total.dtype), grad_weight.to(weight.dtype)


def fused_add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float, casting: int) -> None:
    """The same, written over ``x`` (the norm) and ``residual`` (the sum)."""
    y, total = fused_add_rms_norm(x, residual, weight, eps, casting)
    residual.copy_(total)
    x.copy_(y)


def rms_norm_gated(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    eps: float,
    casting: int,
    norm_first: bool,
    sigmoid: bool,
    group: int,
) -> Tensor:
    """The norm of each group, times the gate, or of ``x`` times the gate; ``casting`` says where it is rounded."""
    number, of_gate = wide(x), _gate(wide(gate), sigmoid)
    normal = _normal_groups(number if norm_first else number * of_gate, eps, group)
    if casting == LLAMA:
        normal = normal.to(x.dtype)
    y = normal if weight is None else normal * (weight if casting == LLAMA else wide(weight))
    return (y * of_gate if norm_first else y).to(x.dtype)


def rms_norm_gated_backward(
    grad: Tensor,
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    eps: float,
    casting: int,
    norm_first: bool,
    sigmoid: bool,
    group: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for ``x``, ``gate`` and ``weight``, or nothing; rounding in the forward counts as the identity."""
    number, g, slope = wide(x), wide(gate), wide(grad)
    s = g.sigmoid()
    of_gate, steep = _gate(g, sigmoid), s * (1 - s) if sigmoid else s * (1 + g * (1 - s))
    n = number if norm_first else number * of_gate
    normal, scaled = _normal_groups(n, eps, group), slope if weight is None else slope * wide(weight)
    of_n = _back_groups(scaled * of_gate if norm_first else scaled, n, eps, group)
    grad_x, grad_gate = (of_n, scaled * normal * steep) if norm_first else (of_n * of_gate, of_n * number * steep)
    of_weight = over_rows(slope * normal * of_gate if norm_first else slope * normal)
    return grad_x.to(x.dtype), grad_gate.to(x.dtype), x.new_empty(0) if weight is None else of_weight.to(weight.dtype)


def l2_norm(x: Tensor, eps: float) -> Tensor:
    """``x / sqrt(sum(x**2, -1) + eps)``, rounded once."""
    rows = wide(x)
    return (rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def l2_norm_backward(grad: Tensor, x: Tensor, eps: float) -> Tensor:
    """The gradient of ``x``."""
    rows, slope = wide(x), wide(grad)
    scale = torch.rsqrt(rows.square().sum(-1, keepdim=True) + eps)
    normal = rows * scale
    return (scale * (slope - normal * (slope * normal).sum(-1, keepdim=True))).to(x.dtype)


def _gate(g: Tensor, sigmoid: bool) -> Tensor:
    return g.sigmoid() if sigmoid else torch.nn.functional.silu(g)


def _normal_groups(n: Tensor, eps: float, group: int) -> Tensor:
    grouped = n.unflatten(-1, (-1, group)) if group else n
    normal = grouped * reciprocal_rms(grouped, eps)
    return normal.flatten(-2) if group else normal


def _back_groups(grad: Tensor, n: Tensor, eps: float, group: int) -> Tensor:
    grouped, slope = (one.unflatten(-1, (-1, group)) if group else one for one in (n, grad))
    rrms = reciprocal_rms(grouped, eps)
    normal = grouped * rrms
    found = rrms * (slope - normal * (slope * normal).mean(-1, keepdim=True))
    return found.flatten(-2) if group else found


def _scale(weight: Tensor, casting: int) -> Tensor:
    return 1 + wide(weight) if casting == GEMMA else wide(weight)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """``(x - mean(x, -1)) / sqrt(var(x, -1) + eps) * weight + bias``, rounded once to ``x``'s dtype."""
    y, _ = _normal(wide(x), eps)
    if weight is not None:
        y = y * wide(weight)
    if bias is not None:
        y = y + wide(bias)
    return y.to(x.dtype)


def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_grad: bool, bias_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for ``x``, ``weight`` and ``bias``; a gradient that is not requested is empty."""
    slope = wide(grad)
    normal, scale = _normal(wide(x), eps)
    scaled = slope if weight is None else slope * wide(weight)
    projection = normal * (scaled * normal).mean(-1, keepdim=True)
    grad_x = scale * (scaled - scaled.mean(-1, keepdim=True) - projection)
    like = x if weight is None else weight
    nothing = like.new_empty(0)
    return (
        grad_x.to(x.dtype),
        over_rows(slope * normal).to(like.dtype) if weight_grad else nothing,
        over_rows(slope).to(like.dtype) if bias_grad else nothing.clone(),
    )


def _normal(rows: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    deviation = rows - rows.mean(-1, keepdim=True)
    scale = reciprocal_rms(deviation, eps)
    scale = scale + 0 / scale  # NaN if the variance has overflowed, not a row of zeros
    return deviation * scale, scale
