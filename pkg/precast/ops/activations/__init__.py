"""Gated activations: one half of the last dimension goes through an activation and is multiplied by the other half.

``x`` is ``(..., 2 * d)`` and the result ``(..., d)``. The activation is computed in float32 and rounded to the dtype of
``x``, then the product is rounded, as in ``torch.nn.functional.silu(x[..., :d]) * x[..., d:]`` and its variants. On a
GPU, the formulas are those of torch's kernels, so the result has the same bits. On the CPU, the activation is at least
as accurate as torch's. It is more accurate mainly in the negative tails of the two GELUs, where torch loses digits.

Gradients are computed in one pass, from ``x`` alone, in float32, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function_unary

from precast._dispatch import namespace
from precast._dispatch.formulas import AUTOGRAD_KEY, late, on_rows, register, without_autograd
from precast.ops import _checks


class GatedKind:
    """The schemas' codes for gated activations."""

    SILU_AND_MUL = 0
    GELU_AND_MUL = 1
    GELU_TANH_AND_MUL = 2
    MUL_AND_SILU = 3


GATED_KINDS = range(4)

# Bound once, as in rms_norm.
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_transform_active = torch._C._are_functorch_transforms_active
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded


def silu_and_mul(x: Tensor) -> Tensor:
    """``silu(x[..., :d]) * x[..., d:]``, the gate of SwiGLU. Differentiable.

    Args:
        x: ``(..., 2 * d)``; float32, float16 or bfloat16, on the CPU or a GPU.

    Returns:
        A contiguous ``(..., d)`` of the dtype of ``x``. The activation is rounded before the product.

    Raises:
        RuntimeError: ``x`` has another dtype, or an odd last dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x = torch.randn(8, 128)
        y = precast.ops.silu_and_mul(x)  # (8, 64)
    """
    return _gated(x, GatedKind.SILU_AND_MUL)


def gelu_and_mul(x: Tensor) -> Tensor:
    """``gelu(x[..., :d]) * x[..., d:]`` with the exact GELU, by ``erf``. Differentiable.

    Args:
        x: ``(..., 2 * d)``; float32, float16 or bfloat16, on the CPU or a GPU.

    Returns:
        A contiguous ``(..., d)`` of the dtype of ``x``. The activation is rounded before the product.

    Raises:
        RuntimeError: ``x`` has another dtype, or an odd last dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x = torch.randn(8, 128)
        y = precast.ops.gelu_and_mul(x)  # (8, 64)
    """
    return _gated(x, GatedKind.GELU_AND_MUL)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """``gelu(x[..., :d], approximate="tanh") * x[..., d:]``. Differentiable.

    Args:
        x: ``(..., 2 * d)``; float32, float16 or bfloat16, on the CPU or a GPU.

    Returns:
        A contiguous ``(..., d)`` of the dtype of ``x``. The activation is rounded before the product.

    Raises:
        RuntimeError: ``x`` has another dtype, or an odd last dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x = torch.randn(8, 128)
        y = precast.ops.gelu_tanh_and_mul(x)  # (8, 64)
    """
    return _gated(x, GatedKind.GELU_TANH_AND_MUL)


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


def _gated(x: Tensor, kind: int) -> Tensor:
    # Bypasses autograd's Python kernel, as in rms_norm.
    if (
        not _is_compiling()  # first, because torch 2.4 cannot trace the checks below
        and forward_ad._current_level < 0
        and not _transform_active()
        and not has_torch_function_unary(x)
        and not _is_excluded(AUTOGRAD_KEY)
    ):
        if x.requires_grad and _is_grad_enabled():
            return _recorded_gated_activation(_gated_activation_below, x, kind)
        _set_excluded(AUTOGRAD_KEY, True)
        try:
            return _gated_activation(x, kind)
        finally:
            _set_excluded(AUTOGRAD_KEY, False)
    y: Tensor = GATED_ACTIVATION(x, kind)
    return y


class _GatedActivation(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], x: Tensor, kind: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kind = kind
        return compute(x, kind)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        return None, GATED_ACTIVATION_BACKWARD(grad, x, ctx.kind), None


_recorded_gated_activation: Callable[..., Tensor] = _GatedActivation.apply


def _half(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _check(op: str, x: Tensor, kind: int, grad: Tensor | None = None) -> None:
    """Raises unless ``x`` has two halves; ``grad``, if given, must have the shape of one of them."""
    _checks.require(
        x.dtype in _checks.FLOAT_TYPES,
        lambda: f"{op}: x is {_checks.dtype_name(x)}; needed float32, float16 or bfloat16",
    )
    _checks.require(x.dim() >= 1, lambda: f"{op}: x has shape (); needed at least one dimension")
    _checks.require(
        x.shape[-1] % 2 == 0,
        lambda: f"{op}: x has shape {tuple(x.shape)}; needed an even last dimension, which holds two halves",
    )
    _checks.require(kind in GATED_KINDS, lambda: f"{op}: kind is {kind}; needed 0, 1, 2 or 3")
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


def _reference() -> ModuleType:
    from precast.ops.activations import reference

    return reference


def _twins() -> ModuleType:
    from precast.ops.activations import twin

    return twin


with namespace.family("activations", twins=_twins), namespace.family("activations_backward", twins=_twins):
    # The backward has no gradient formula: the reference computes the gradient of a gradient.
    GATED_ACTIVATION = register(
        "gated_activation",
        check=lambda x, kind: _check("gated_activation", x, kind),
        result=lambda x, kind: _half(x),
        reference=late(_reference, "gated_activation"),
        gradient=_GatedActivation.apply,
        sharding=on_rows(1),
    )
    GATED_ACTIVATION_BACKWARD = register(
        "gated_activation_backward",
        check=lambda grad, x, kind: _check("gated_activation_backward", x, kind, grad),
        result=lambda grad, x, kind: torch.empty_like(x, memory_format=torch.contiguous_format),
        reference=late(_reference, "gated_activation_backward"),
        sharding=on_rows(1),
    )

# The dispatcher's own entry points, without the Python frame of OpOverload.__call__.
_gated_activation: Callable[[Tensor, int], Tensor] = GATED_ACTIVATION._op
_gated_activation_below = without_autograd(_gated_activation)
