"""RMS norm and its gradients in plain torch."""

from __future__ import annotations

from torch import Tensor

from precast.ops._reference import over_rows, reciprocal_rms, wide
from precast.ops.rms_norm import GEMMA, LLAMA


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
