"""RMS norm, layer norm and their gradients in plain torch."""

from __future__ import annotations

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
