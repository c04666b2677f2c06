"""Gated activations: gates go through an activation and are multiplied by factors, often called "up".

Gates and factors are two tensors of one shape, or both are in one ``x`` of ``(..., 2 * d)``, which gives ``(..., d)``.
Two tensors need no ``torch.cat``, and their gradients are two tensors. The activation is computed in float32 and
rounded to the dtype of ``x``, then the product is rounded, as in ``torch.nn.functional.silu(gate) * up`` and its
variants. On a GPU, the formulas are those of torch's kernels, so the result has the same bits. On the CPU, the
activation is at least as accurate as torch's. It is more accurate mainly in the negative tails of the GELUs, where
torch loses digits.

Gradients are computed in one pass, from the inputs alone, in float32, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from precast._dispatch import namespace
from precast._dispatch.formulas import on_rows, register
from precast._dispatch.routes import Route, is_compiling
from precast.ops import _checks


class GatedKind:
    """The schemas' codes for activations. The last two activations take gates alone."""

    SILU_AND_MUL = 0
    GELU_AND_MUL = 1
    GELU_TANH_AND_MUL = 2
    MUL_AND_SILU = 3
    FATRELU_AND_MUL = 4
    SWIGLUOAI_AND_MUL = 5
    GELU_QUICK = 6
    GELU_NEW = 7


_LAST_GATED = GatedKind.SWIGLUOAI_AND_MUL
QUICK = 1.702  # of gelu_quick: x * sigmoid(1.702 x) is near GELU (Hendrycks and Gimpel, 2016)


def silu_and_mul(x: Tensor, up: Tensor | None = None) -> Tensor:
    """``silu(gate) * up``, the gate of SwiGLU. Differentiable.

    Args:
        x: the gates; float32, float16 or bfloat16, on the CPU or a GPU. Without ``up``: ``(..., 2 * d)``, gates in the
            first half of the last dimension and factors in the second.
        up: the factors, with the shape, dtype and device of ``x``.

    Returns:
        A contiguous tensor of the dtype of ``x``, and of the shape of ``up`` or of half of ``x``. The activation is
        rounded before the product.

    Raises:
        RuntimeError: ``x`` has another dtype, ``up`` does not fit, or there is no ``up`` and an odd last dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        gate, up = torch.randn(8, 64), torch.randn(8, 64)
        y = precast.ops.silu_and_mul(gate, up)  # (8, 64)
        y = precast.ops.silu_and_mul(torch.cat([gate, up], -1))  # the same
    """
    return _gated(x, GatedKind.SILU_AND_MUL) if up is None else _paired(x, up, GatedKind.SILU_AND_MUL)


def gelu_and_mul(x: Tensor, up: Tensor | None = None) -> Tensor:
    """``gelu(gate) * up`` with the exact GELU, by ``erf``. Differentiable.

    Args:
        x: the gates; float32, float16 or bfloat16, on the CPU or a GPU. Without ``up``: ``(..., 2 * d)``, gates in the
            first half of the last dimension and factors in the second.
        up: the factors, with the shape, dtype and device of ``x``.

    Returns:
        A contiguous tensor of the dtype of ``x``, and of the shape of ``up`` or of half of ``x``. The activation is
        rounded before the product.

    Raises:
        RuntimeError: ``x`` has another dtype, ``up`` does not fit, or there is no ``up`` and an odd last dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        gate, up = torch.randn(8, 64), torch.randn(8, 64)
        y = precast.ops.gelu_and_mul(gate, up)  # (8, 64)
        y = precast.ops.gelu_and_mul(torch.cat([gate, up], -1))  # the same
    """
    return _gated(x, GatedKind.GELU_AND_MUL) if up is None else _paired(x, up, GatedKind.GELU_AND_MUL)


def gelu_tanh_and_mul(x: Tensor, up: Tensor | None = None) -> Tensor:
    """``gelu(gate, approximate="tanh") * up``. Differentiable.

    Args:
        x: the gates; float32, float16 or bfloat16, on the CPU or a GPU. Without ``up``: ``(..., 2 * d)``, gates in the
            first half of the last dimension and factors in the second.
        up: the factors, with the shape, dtype and device of ``x``.

    Returns:
        A contiguous tensor of the dtype of ``x``, and of the shape of ``up`` or of half of ``x``. The activation is
        rounded before the product.

    Raises:
        RuntimeError: ``x`` has another dtype, ``up`` does not fit, or there is no ``up`` and an odd last dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        gate, up = torch.randn(8, 64), torch.randn(8, 64)
        y = precast.ops.gelu_tanh_and_mul(gate, up)  # (8, 64)
        y = precast.ops.gelu_tanh_and_mul(torch.cat([gate, up], -1))  # the same
    """
    return _gated(x, GatedKind.GELU_TANH_AND_MUL) if up is None else _paired(x, up, GatedKind.GELU_TANH_AND_MUL)


def mul_and_silu(x: Tensor) -> Tensor:
    """``x[..., :d] * silu(x[..., d:])``: :func:`silu_and_mul` with the halves swapped. Differentiable.

    Args:
        x: ``(..., 2 * d)``; float32, float16 or bfloat16, on the CPU or a GPU.

    Returns:
        A contiguous ``(..., d)`` of the dtype of ``x``. The activation is rounded before the product.

    Raises:
        RuntimeError: ``x`` has another dtype, or an odd last dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x = torch.randn(8, 128)
        y = precast.ops.mul_and_silu(x)  # (8, 64)
    """
    return _gated(x, GatedKind.MUL_AND_SILU)


def fatrelu_and_mul(x: Tensor, up: Tensor | None = None, *, threshold: float = 0.0) -> Tensor:
    """``(gate if gate > threshold else 0) * up``, for sparse activations. Differentiable.

    Args:
        x: as in :func:`silu_and_mul`.
        up: as in :func:`silu_and_mul`.
        threshold: gates up to this number become 0.

    Returns:
        A contiguous tensor, as from :func:`silu_and_mul`.

    Raises:
        RuntimeError: as for :func:`silu_and_mul`.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x = torch.randn(8, 128)
        y = precast.ops.fatrelu_and_mul(x, threshold=0.5)  # (8, 64)
    """
    kind = GatedKind.FATRELU_AND_MUL
    return _gated(x, kind, threshold) if up is None else _paired(x, up, kind, threshold)


def swigluoai_and_mul(x: Tensor, up: Tensor | None = None, *, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """``gate * sigmoid(alpha * gate) * (up + 1)`` of clamped gates and factors, as in gpt-oss. Differentiable.

    Gates are clamped to at most ``limit``, factors to ``[-limit, limit]``. The result is rounded once, from float32.

    Args:
        x: the gates; float32, float16 or bfloat16, on the CPU or a GPU. Without ``up``: ``(..., 2 * d)``, in which
            gates and factors alternate: gates in ``x[..., ::2]``, factors in ``x[..., 1::2]``.
        up: the factors, with the shape, dtype and device of ``x``.
        alpha: the factor within the sigmoid.
        limit: where to clamp; 0 or more.

    Returns:
        A contiguous tensor, as from :func:`silu_and_mul`.

    Raises:
        RuntimeError: as for :func:`silu_and_mul`, or ``limit`` is negative.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x = torch.randn(8, 128)
        y = precast.ops.swigluoai_and_mul(x)  # (8, 64)
    """
    kind = GatedKind.SWIGLUOAI_AND_MUL
    return _gated(x, kind, alpha, limit) if up is None else _paired(x, up, kind, alpha, limit)


def gelu_quick(x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 * x)``, also known as QuickGELU. Differentiable.

    Args:
        x: at least one dimension; float32, float16 or bfloat16, on the CPU or a GPU.

    Returns:
        A contiguous tensor of the shape and dtype of ``x``, computed in float32 and rounded once.

    Raises:
        RuntimeError: ``x`` has another dtype, or no dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x = torch.randn(8, 64)
        y = precast.ops.gelu_quick(x)
    """
    return _paired(x, None, GatedKind.GELU_QUICK, QUICK)


def gelu_new(x: Tensor) -> Tensor:
    """``torch.nn.functional.gelu(x, approximate="tanh")``, under the name that models use. Differentiable.

    Args:
        x: at least one dimension; float32, float16 or bfloat16, on the CPU or a GPU.

    Returns:
        A contiguous tensor of the shape and dtype of ``x``, computed in float32 and rounded once.

    Raises:
        RuntimeError: ``x`` has another dtype, or no dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x = torch.randn(8, 64)
        y = precast.ops.gelu_new(x)
    """
    return _paired(x, None, GatedKind.GELU_NEW)


def _gated(x: Tensor, kind: int, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    if not is_compiling() and forward_ad._current_level < 0:
        try:
            return _GATED.call(x, kind, alpha, limit)  # type: ignore[no-any-return]
        except _checks.CONFUSED:
            _checks.explain(_FUNCTIONS[kind], {"x": x})
    y: Tensor = GATED_ACTIVATION(x, kind, alpha, limit)
    return y


def _paired(x: Tensor, up: Tensor | None, kind: int, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    if not is_compiling() and forward_ad._current_level < 0:
        try:
            return _PAIRED.call(x, up, kind, alpha, limit)  # type: ignore[no-any-return]
        except _checks.CONFUSED:
            _checks.explain(_FUNCTIONS[kind], {"x": x, "up": up})
    y: Tensor = ACTIVATION(x, up, kind, alpha, limit)
    return y


# By the codes of GatedKind, for the names in errors.
_FUNCTIONS: tuple[Callable[..., Tensor], ...] = (
    silu_and_mul,
    gelu_and_mul,
    gelu_tanh_and_mul,
    mul_and_silu,
    fatrelu_and_mul,
    swigluoai_and_mul,
    gelu_quick,
    gelu_new,
)


class _GatedActivation(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Tensor], x: Tensor, kind: int, alpha: float = 0.0, limit: float = 0.0
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.options = kind, alpha, limit
        return compute(x, kind, alpha, limit)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        return None, _GATED_BACKWARD(grad, x, *ctx.options), None, None, None


class _Activation(torch.autograd.Function):
    """As :class:`_GatedActivation`, for gates and factors in two tensors, or for gates alone."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., Tensor],
        x: Tensor,
        up: Tensor | None,
        kind: int,
        alpha: float = 0.0,
        limit: float = 0.0,
    ) -> Tensor:
        ctx.save_for_backward(x, up)
        ctx.options = kind, alpha, limit
        return compute(x, up, kind, alpha, limit)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, up = ctx.saved_tensors
        grad_x, grad_up = _PAIRED_BACKWARD(grad, x, up, *ctx.options)
        return None, grad_x, None if up is None else grad_up, None, None, None


def _half(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _check(op: str, x: Tensor, kind: int, limit: float, last_kind: int) -> None:
    _checks.rows(op, x)
    _checks.require(0 <= kind <= last_kind, lambda: f"{op}: kind is {kind}; needed 0 to {last_kind}")
    _checks.require(
        kind != GatedKind.SWIGLUOAI_AND_MUL or limit >= 0,
        lambda: f"{op}: limit is {limit:g}; needed a number that is not negative",
    )


def _check_halves(op: str, x: Tensor, kind: int, limit: float, grad: Tensor | None = None) -> None:
    """Raises unless ``x`` has two halves; ``grad``, if given, must have the shape of one of them."""
    _check(op, x, kind, limit, _LAST_GATED)
    _checks.require(
        x.shape[-1] % 2 == 0,
        lambda: f"{op}: x has shape {tuple(x.shape)}; needed an even last dimension, which holds two halves",
    )
    if grad is None:
        return
    _checks.same_kind(op, "grad", grad, x)
    _checks.require(
        grad.shape == (*x.shape[:-1], x.shape[-1] // 2),
        lambda: (
            f"{op}: grad has shape {tuple(grad.shape)} and x has shape {tuple(x.shape)}; needed the shape of x with "
            "half its last dimension"
        ),
    )


def _check_pair(op: str, x: Tensor, up: Tensor | None, kind: int, limit: float, grad: Tensor | None = None) -> None:
    _check(op, x, kind, limit, GatedKind.GELU_NEW)
    _checks.require(
        (up is None) == (kind > _LAST_GATED),
        lambda: f"{op}: kind is {kind} and up is {'None' if up is None else 'a tensor'}; needed up for kinds 0 to 5",
    )
    for name, other in (("up", up), ("grad", grad)):
        if other is None:
            continue
        _checks.same_kind(op, name, other, x)
        _checks.same_shape(op, name, other, "x", x)


def _backward_rule(grad: Any, x: Any, up: Any, *rest: Any) -> Any:
    """The second gradient is empty without ``up``, and no part of it is sharded."""
    return (on_rows(2, kept=0) if up is not None else on_rows(1, sums=1, kept=0))(grad, x, up, *rest)


with namespace.family("activations", __package__), namespace.family("activations_backward", __package__):
    # The backward has no gradient formula: the reference computes the gradient of a gradient.
    GATED_ACTIVATION = register(
        "gated_activation",
        check=_check_halves,
        result=_half,
        gradient=_GatedActivation.apply,
        sharding=on_rows(1),
    )
    GATED_ACTIVATION_BACKWARD = register(
        "gated_activation_backward",
        check=_check_halves,
        result="x",
        sharding=on_rows(1),
    )
    # One element after the other, so any dimension may be sharded.
    ACTIVATION = register(
        "activation",
        check=_check_pair,
        result="x",
        gradient=_Activation.apply,
        sharding=on_rows(1, kept=0),
    )
    ACTIVATION_BACKWARD = register(
        "activation_backward",
        check=_check_pair,
        result=lambda x, up: (_checks.like(x), x.new_empty(0) if up is None else _checks.like(up)),
        sharding=_backward_rule,
    )

_GATED = Route(GATED_ACTIVATION, _GatedActivation)
_GATED_BACKWARD = Route(GATED_ACTIVATION_BACKWARD)
_PAIRED = Route(ACTIVATION, _Activation)
_PAIRED_BACKWARD = Route(ACTIVATION_BACKWARD)
