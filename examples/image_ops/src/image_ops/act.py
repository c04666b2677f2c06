"""Bias and leaky ReLU in one pass, differentiable to any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from image_ops.compiled import kernel

LEAKY_RELU = 3  # as fused_bias_act counts activations


def fused_leaky_relu(
    x: Tensor, bias: Tensor | None = None, negative_slope: float = 0.2, scale: float = 2**0.5
) -> Tensor:
    """``leaky_relu(x + bias, negative_slope) * scale``; ``bias`` has one value for each entry of dimension 1.

    The backward pass reads the slope off the sign of the output, so it needs a scale and a slope that keep signs.
    """
    if not (scale > 0 and negative_slope >= 0):
        raise ValueError(f"scale is {scale} and negative_slope {negative_slope}: the one must be > 0, the other >= 0")
    out: Tensor = _FusedLeakyReLU.apply(x, bias, negative_slope, scale)
    return out


class _FusedLeakyReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, negative_slope: float, scale: float) -> Tensor:
        empty = x.new_empty(0)
        given = empty if bias is None else bias
        out: Tensor = kernel("fused").fused_bias_act(x, given, empty, LEAKY_RELU, 0, negative_slope, scale)
        ctx.save_for_backward(out)
        ctx.has_bias, ctx.slope = bias is not None, (negative_slope, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (out,) = ctx.saved_tensors
        grad: Tensor = _Slope.apply(grad_output, out, *ctx.slope)
        others = [dim for dim in range(grad.dim()) if dim != 1]
        return grad, grad.sum(others) if ctx.has_bias else None, None, None


class _Slope(torch.autograd.Function):
    """The gradient times the slope at each element: linear in the gradient, so its derivative is itself."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, out: Tensor, negative_slope: float, scale: float) -> Tensor:
        ctx.save_for_backward(out)
        ctx.slope = negative_slope, scale
        empty = grad_output.new_empty(0)
        fused = kernel("fused")
        grad: Tensor = fused.fused_bias_act(grad_output, empty, out, LEAKY_RELU, 1, negative_slope, scale)
        return grad

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (out,) = ctx.saved_tensors
        return _Slope.apply(grad, out, *ctx.slope), None, None, None
