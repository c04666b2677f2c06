"""Layer normalisation (Ba, Kiros and Hinton, 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from precast._dispatch import namespace
from precast._dispatch.formulas import on_rows, register
from precast._dispatch.routes import Route, is_compiling
from precast.ops import _checks
from precast.ops._fx import Proxy, recorded
from precast.ops.norm import _shapes


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    normalized_shape: int | Sequence[int] | None = None,
) -> Tensor:
    """``(x - mean(x, -1)) / sqrt(var(x, -1) + eps) * weight + bias``. Differentiable.

    Args:
        x: ``(..., hidden)``; float32, float16 or bfloat16, on the CPU or a GPU. It may be a jagged nested tensor.
        weight: ``(hidden,)``, of the device of ``x`` and of its dtype or float32; or None.
        bias: ``(hidden,)``, of the device of ``x`` and of the dtype of ``weight``; without a weight, of ``x``; or None.
        eps: added to the (biased) variance; 0 or more.
        normalized_shape: the last dimensions to normalise, if there are several; the parameters have this shape.

    Returns:
        A contiguous tensor with the shape and dtype of ``x``. A row whose variance overflows float32 is NaN.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, weight, bias = torch.randn(8, 64), torch.ones(64), torch.zeros(64)
        y = precast.ops.layer_norm(x, weight, bias)
    """
    try:
        if normalized_shape is not None:
            return _over_shape(x, weight, bias, eps, normalized_shape)
        if not is_compiling() and forward_ad._current_level < 0:
            return _LAYER_NORM.call(x, weight, bias, eps)  # type: ignore[no-any-return]
        return _dispatched(x, weight, bias, eps)
    except _checks.CONFUSED:
        _checks.explain(layer_norm, locals(), takes_jagged=True)


def _dispatched(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    if isinstance(x, Proxy):
        return recorded(layer_norm, **locals())  # type: ignore[no-any-return]
    if x.is_nested:
        return _over_shape(x, weight, bias, eps, x.shape[-1:])
    if _shapes.is_exporting_onnx():
        scale, shift = (None if column is None else column.float() for column in (weight, bias))
        return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], scale, shift, eps).to(x.dtype)
    y: Tensor = LAYER_NORM(x, weight, bias, eps)
    return y


def _over_shape(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, shape: int | Sequence[int]
) -> Tensor:
    """The norm over several dimensions, or of a nested tensor."""
    if isinstance(x, Proxy):
        return recorded(layer_norm, x=x, weight=weight, bias=bias, eps=eps, normalized_shape=shape)  # type: ignore[no-any-return]
    result: Tensor
    if _shapes.is_jagged(x):
        inner = lambda values: _over_shape(values, weight, bias, eps, shape)  # noqa: E731
        result = _shapes.over_jagged("layer_norm", inner, (x,), 1 if isinstance(shape, int) else len(shape))
    else:
        call = lambda x, weight, bias: layer_norm(x, weight, bias, eps)  # noqa: E731
        result = _shapes.over_several("layer_norm", call, (x,), shape, (weight, bias))
    return result


class _LayerNorm(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Tensor], x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return compute(x, weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        _, _, of_weight, of_bias, _ = ctx.needs_input_grad
        grad_x, grad_weight, grad_bias = _LAYER_NORM_BACKWARD(grad, x, weight, ctx.eps, of_weight, of_bias)
        return None, grad_x, grad_weight if of_weight else None, grad_bias if of_bias else None, None


def _backward_result(
    grad: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_grad: bool, bias_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    hidden = x.shape[-1]
    grad_x = _checks.like(x)
    like = x if weight is None else weight
    return grad_x, like.new_empty(hidden if weight_grad else 0), like.new_empty(hidden if bias_grad else 0)


def _check(op: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, **like_x: Tensor) -> None:
    """Raise unless ``weight`` and ``bias`` fit ``x``'s last dimension and each of ``like_x`` has ``x``'s shape."""
    _checks.rows(op, x)
    given = {"weight": weight, "bias": bias}
    _checks.row_tensors(op, x, eps, {name: tensor for name, tensor in given.items() if tensor is not None}, like_x)


with namespace.family("layer_norm", __package__), namespace.family("layer_norm_backward", __package__):
    LAYER_NORM = register(
        "layer_norm",
        check=_check,
        result="x",
        gradient=_LayerNorm.apply,
        sharding=on_rows(1),
    )
    # No gradient formula: the reference computes the gradient of a gradient (create_graph=True).
    LAYER_NORM_BACKWARD = register(
        "layer_norm_backward",
        check=lambda op, grad, x, weight, eps: _check(op, x, weight, None, eps, grad=grad),
        result=_backward_result,
        sharding=on_rows(1, sums=2),
    )

_LAYER_NORM = Route(LAYER_NORM, _LayerNorm, _dispatched)
_LAYER_NORM_BACKWARD = Route(LAYER_NORM_BACKWARD)
