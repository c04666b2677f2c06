"""``bias_act`` and ``fused_leaky_relu``: the public functions, and below them the formulas of the ops.

For ``linear``, ``relu`` and ``lrelu``, the gradient is computed from the result, whose sign gives the slope, because
the next layer usually keeps the result anyway. For other activations, autograd keeps ``x`` and the bias. The kernel
that computes the gradient of ``x`` also sums the gradient of the bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast._dispatch.routes import Route
from precast.ops import _checks
from precast.ops._fx import Proxy, recorded
from precast.ops.image import _common


@dataclass(frozen=True)
class Activation:
    """One activation: the number in the schemas, and the values of ``alpha`` and ``gain`` that None stands for."""

    number: int
    def_alpha: float
    def_gain: float


ACTIVATIONS = {
    "linear": Activation(0, 0.0, 1.0),
    "relu": Activation(1, 0.0, math.sqrt(2)),
    "lrelu": Activation(2, 0.2, math.sqrt(2)),
    "tanh": Activation(3, 0.0, 1.0),
    "sigmoid": Activation(4, 0.0, 1.0),
    "elu": Activation(5, 0.0, 1.0),
    "selu": Activation(6, 0.0, 1.0),
    "softplus": Activation(7, 0.0, 1.0),
    "swish": Activation(8, 0.0, math.sqrt(2)),
}
UNCLAMPED = -1.0


def bias_act(
    x: Tensor,
    b: Tensor | None = None,
    dim: int = 1,
    act: str = "linear",
    alpha: float | None = None,
    gain: float | None = None,
    clamp: float | None = None,
) -> Tensor:
    """``clamp(gain * act(x + b))`` in one pass over memory. Differentiable to any order.

    Gradients of ``linear``, ``relu`` and ``lrelu`` are computed by kernels to any order. Second gradients of the other
    activations are computed by plain torch.

    Args:
        x: any shape; float32, float16, bfloat16 or float64, on the CPU or a GPU. Arithmetic is in float32, or float64.
        b: the bias, ``(x.shape[dim],)``, of the dtype of ``x`` or float32 for a narrower ``x``; None: no bias.
        dim: the dimension of ``x`` that the bias belongs to.
        act: ``"linear"``, ``"relu"``, ``"lrelu"``, ``"tanh"``, ``"sigmoid"``, ``"elu"``, ``"selu"``, ``"softplus"`` or
            ``"swish"``.
        alpha: the slope of ``lrelu`` below zero; 0.2 by default. Other activations ignore it.
        gain: multiplies the result; by default sqrt(2) for ``relu``, ``lrelu`` and ``swish``, and 1 for the others.
        clamp: results are clamped to ``[-clamp, clamp]``; None: they are not. Where a result is clamped, the
            gradient is zero. For ``linear``, ``relu`` and ``lrelu``, a result that is rounded to the clamp counts as
            clamped.

    Returns:
        A tensor with the shape and dtype of ``x``. If ``x`` is in the memory format channels_last and ``dim`` is 1, so
        is the result; else it is contiguous.

    Raises:
        ValueError: ``act`` is unknown, ``clamp`` is negative, or ``dim`` is not a dimension of ``x``.
        RuntimeError: ``x`` has another dtype, or the bias another shape, dtype or device.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, b = torch.randn(2, 8, 16, 16), torch.zeros(8)
        y = precast.ops.bias_act(x, b, act="lrelu", clamp=256)
    """
    if isinstance(x, Proxy):
        return recorded(bias_act, **locals())  # type: ignore[no-any-return]
    try:
        y: Tensor = _bias_act(*arguments(x, b, dim, act, alpha, gain, clamp))
    except _checks.CONFUSED:
        _checks.explain(bias_act, locals())
    return y


def arguments(
    x: Tensor,
    b: Tensor | None,
    dim: int,
    act: str,
    alpha: float | None,
    gain: float | None,
    clamp: float | None,
) -> tuple[Any, ...]:
    """The arguments of the op; raises as :func:`bias_act` does."""
    if act not in ACTIVATIONS:
        raise ValueError(f"act is {act!r}; needed one of {', '.join(ACTIVATIONS)}")
    if clamp is not None and not clamp >= 0:
        raise ValueError(f"clamp is {clamp}; needed a number that is not negative, or None")
    if b is not None:
        if not -x.dim() <= dim < x.dim():
            raise ValueError(f"dim is {dim} and x has {x.dim()} dimensions; needed {-x.dim()} to {x.dim() - 1}")
        dim = dim % x.dim()  # %= would write into a caller's tensor
    kind = ACTIVATIONS[act]
    return (
        x,
        b,
        dim if b is not None else 1,
        kind.number,
        float(kind.def_alpha if alpha is None else alpha),
        float(kind.def_gain if gain is None else gain),
        UNCLAMPED if clamp is None else float(clamp),
    )


def fused_leaky_relu(
    x: Tensor, bias: Tensor | None = None, negative_slope: float = 0.2, scale: float = 2**0.5
) -> Tensor:
    """``leaky_relu(x + bias, negative_slope) * scale`` in one pass over memory. Differentiable to any order.

    Args:
        x: ``(batch, channels, ...)``; float32, float16, bfloat16 or float64, on the CPU or a GPU.
        bias: ``(channels,)``, of the dtype of ``x`` or float32 for a narrower ``x``; None: no bias.
        negative_slope: the slope below zero.
        scale: multiplies the result.

    Returns:
        A tensor with the shape and dtype of ``x``, in its memory format if that is contiguous or channels_last.

    Raises:
        ValueError: there is a bias and ``x`` has no dimension 1.
        RuntimeError: ``x`` has another dtype, or the bias another shape, dtype or device.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, bias = torch.randn(2, 8, 16, 16), torch.zeros(8)
        y = precast.ops.fused_leaky_relu(x, bias)
    """
    if isinstance(x, Proxy):
        return recorded(fused_leaky_relu, **locals())  # type: ignore[no-any-return]
    try:
        return bias_act(x, bias, act="lrelu", alpha=negative_slope, gain=scale)
    except _checks.CONFUSED:
        _checks.explain(fused_leaky_relu, locals())


class _BiasAct(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., Tensor],
        x: Tensor,
        bias: Tensor | None,
        dim: int,
        act: int,
        alpha: float,
        gain: float,
        clamp: float,
    ) -> Tensor:
        y = compute(x, bias, dim, act, alpha, gain, clamp)
        ctx.options = dim, act, alpha, gain, clamp
        ctx.of_output = _common.from_output(x, bias, act, alpha, gain)
        if act == _common.LINEAR and clamp < 0:
            ctx.save_for_backward(None, bias)
        else:
            ctx.save_for_backward(y if ctx.of_output else x, bias)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        saved, bias = ctx.saved_tensors
        of_bias = bias is not None and ctx.needs_input_grad[2]
        of_output = ctx.of_output and saved is not None
        grad_x, grad_bias = _backward(grad, saved, bias, *ctx.options, of_output, of_bias)
        return None, grad_x, grad_bias if of_bias else None, None, None, None, None, None


class _BiasActBackward(torch.autograd.Function):
    """The gradients of straight lines are linear in ``grad``, and constant in everything else."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., tuple[Tensor, Tensor]],
        grad: Tensor,
        saved: Tensor | None,
        bias: Tensor | None,
        dim: int,
        *options: Any,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(saved, bias)
        ctx.dim, ctx.options = dim, options
        return compute(grad, saved, bias, dim, *options)

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, grad_bias: Tensor) -> tuple[Any, ...]:
        saved, bias = ctx.saved_tensors
        *options, bias_grad = ctx.options
        if bias_grad:
            grad_x = grad_x + grad_bias.to(grad_x.dtype).view(along(ctx.dim, grad_x.dim()))
        result, _ = BIAS_ACT_BACKWARD(grad_x, saved, bias, ctx.dim, *options, False)
        return (None, result, *(None for _ in range(9)))


_recorded_backward: Callable[..., Any] = _BiasActBackward.apply


def _backward_gradient(compute: Callable[..., Any], *args: Any) -> Any:
    """The recorded gradients; those of curved activations are recorded by the reference."""
    if args[4] <= _common.LEAKY:
        return _recorded_backward(compute, *args)
    namespace.CHECKS["bias_act_backward"](*args)
    return namespace.reference("bias_act_backward")(*args)


def along(dim: int, dims: int) -> tuple[int, ...]:
    """The shape by which a vector is viewed along one dimension of many."""
    return tuple(-1 if i == dim else 1 for i in range(dims))


def _check(op: str, x: Tensor, bias: Tensor | None, dim: int, act: int) -> None:
    _common.check_dtype(op, x)
    _checks.require(0 <= act <= 8, lambda: f"{op}: act is {act}; needed 0 to 8")
    if bias is None:
        return
    _checks.require(
        0 <= dim < x.dim(),
        lambda: f"{op}: dim is {dim} and x has shape {tuple(x.shape)}; needed one of its dimensions",
    )
    if x.dtype == torch.float64 or bias.dtype != torch.float32:
        _checks.same_kind(op, "bias", bias, x)
    else:
        _checks.same_device(op, "bias", bias, x)
    _checks.require(
        bias.dim() == 1 and bias.shape[0] == x.shape[dim],
        lambda: f"{op}: bias has shape {tuple(bias.shape)}; needed ({x.shape[dim]},), dimension {dim} of x",
    )


def _check_backward(
    op: str,
    grad: Tensor,
    saved: Tensor | None,
    bias: Tensor | None,
    dim: int,
    act: int,
    alpha: float,
    gain: float,
    clamp: float,
    of_output: bool,
    bias_grad: bool,
) -> None:
    like = grad if saved is None else saved
    _check(op, like, bias, dim, act)
    _checks.same_kind(op, "grad", grad, like, "saved")
    _checks.same_shape(op, "grad", grad, "saved", like)
    _checks.require(
        saved is not None or (act == _common.LINEAR and clamp < 0),
        lambda: f"{op}: saved is None; needed a tensor unless act is 0 and nothing is clamped",
    )
    _checks.require(
        not of_output or _common.has_sign(act, alpha, gain),
        lambda: (
            f"{op}: of_output with act {act}, gain {gain:g} and alpha {alpha:g}; needed act 0 to 2, gain > 0 and "
            "alpha >= 0"
        ),
    )
    _checks.require(not bias_grad or bias is not None, lambda: f"{op}: bias_grad without a bias")


def _like(x: Tensor, bias: Tensor | None, dim: int) -> Tensor:
    return _common.empty_ordered(x.shape, (bias is None or dim == 1) and _common.is_channels_last(x), x)


def _backward_result(
    grad: Tensor, saved: Tensor | None, bias: Tensor | None, dim: int, bias_grad: bool
) -> tuple[Tensor, Tensor]:
    like = grad if saved is None else saved
    length = like.shape[dim] if bias_grad else 0
    return _like(like, bias, dim), (like if bias is None else bias).new_empty(length)


with namespace.family("bias_act", __package__):
    BIAS_ACT = register(
        "bias_act",
        check=_check,
        result=_like,
        gradient=_BiasAct.apply,
    )
    BIAS_ACT_BACKWARD = register(
        "bias_act_backward",
        check=_check_backward,
        result=_backward_result,
        gradient=_backward_gradient,
    )

_bias_act = Route(BIAS_ACT, _BiasAct)
_backward = Route(BIAS_ACT_BACKWARD)
