"""Layer norm and its gradients in plain torch."""

from __future__ import annotations

from torch import Tensor

from precast.ops._reference import over_rows, reciprocal_rms, wide


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
