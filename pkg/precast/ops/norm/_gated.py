"""RMS normalisation with a gate before or after it, and normalisation by length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import on_rows, register
from precast._dispatch.routes import Route
from precast.ops import _checks
from precast.ops._fx import Proxy, recorded
from precast.ops.norm._rms_norm import LLAMA, Casting, casting_code


def rms_norm_gated(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    casting: Casting = "none",
    norm_first: bool = True,
    activation: str = "silu",
    group_size: int | None = None,
) -> Tensor:
    """``rms_norm(x, weight) * silu(gate)``, or ``rms_norm(x * silu(gate), weight)``. Differentiable.

    Args:
        x: ``(..., hidden)``; float32, float16 or bfloat16, on the CPU or a GPU.
        gate: with the shape, dtype and device of ``x``.
        weight: ``(hidden,)``, of the device of ``x`` and of its dtype or float32; None: ones.
        eps: added to the mean square; 0 or more.
        casting: ``"none"`` rounds a low-precision result once, at the end; ``"llama"`` also rounds before the products
            with weight and gate, as Qwen 3 Next (with ``norm_first``) and Mamba 2 (without) do.
        norm_first: True: the gate multiplies the norm; False: the gate multiplies ``x``.
        activation: ``"silu"``, also called ``"swish"``, or ``"sigmoid"``.
        group_size: how many neighbouring columns are normalised together; None: all.

    Returns:
        A contiguous tensor with the shape and dtype of ``x``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, or ``group_size`` does not divide ``hidden``.
        ValueError: ``casting`` is neither of the two, or ``activation`` none of the names.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, gate, weight = torch.randn(8, 64), torch.randn(8, 64), torch.ones(64)
        y = precast.ops.rms_norm_gated(x, gate, weight, casting="llama")
    """
    if isinstance(x, Proxy):
        return recorded(rms_norm_gated, **locals())  # type: ignore[no-any-return]
    try:
        code = casting_code(casting)
        if code > LLAMA:
            raise ValueError(f"casting is {casting!r}; needed 'none' or 'llama'")
        if activation not in ("silu", "swish", "sigmoid"):
            raise ValueError(f"activation is {activation!r}; needed 'silu', 'swish' or 'sigmoid'")
        return _GATED(x, gate, weight, eps, code, norm_first, activation == "sigmoid", group_size or 0)  # type: ignore[no-any-return]
    except _checks.CONFUSED:
        _checks.explain(rms_norm_gated, locals())


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """``x / sqrt(sum(x**2, -1) + eps)``: each row with length 1, as for queries and keys. Differentiable.

    Args:
        x: ``(..., hidden)``; float32, float16 or bfloat16, on the CPU or a GPU.
        eps: added to the sum of squares; 0 or more.

    Returns:
        A contiguous tensor with the shape and dtype of ``x``, rounded once.

    Raises:
        RuntimeError: ``x`` has another dtype, or no dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x = torch.randn(8, 64)
        y = precast.ops.l2_norm(x)
    """
    try:
        return _L2(x, eps)  # type: ignore[no-any-return]
    except _checks.CONFUSED:
        _checks.explain(l2_norm, locals())


class _RmsNormGated(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Tensor], x: Tensor, gate: Tensor, weight: Tensor | None, *options: Any
    ) -> Tensor:
        ctx.save_for_backward(x, gate, weight)
        ctx.options = options
        return compute(x, gate, weight, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, gate, weight = ctx.saved_tensors
        grad_x, grad_gate, grad_weight = _GATED_BACKWARD(grad, x, gate, weight, *ctx.options)
        return None, grad_x, grad_gate, None if weight is None else grad_weight, *[None] * 5


class _L2Norm(torch.autograd.Function):
    """As above."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], x: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.eps = eps
        return compute(x, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, _L2_BACKWARD(grad, *ctx.saved_tensors, ctx.eps), None


def _check(
    op: str,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    casting: int = 0,
    group: int = 0,
    **like_x: Tensor,
) -> None:
    """Raise unless ``weight`` fits ``x``'s last dimension and each of ``like_x`` has ``x``'s shape."""
    _checks.rows(op, x)
    _checks.require(eps >= 0, lambda: f"{op}: eps is {eps:g}; needed a number that is not negative")
    _checks.require(casting in (0, LLAMA), lambda: f"{op}: casting is {casting}; needed 0 or 1")
    columns = x.shape[-1]
    _checks.require(
        group == 0 or (group > 0 and columns % group == 0),
        lambda: f"{op}: group is {group} and x has {columns} columns; needed a divisor, or 0 for one group",
    )
    _checks.row_tensors(op, x, eps, {} if weight is None else {"weight": weight}, like_x)


with namespace.family("rms_norm_gated", __package__), namespace.family("rms_norm_gated_backward", __package__):
    # The backward ops have no gradient formula: the reference computes gradients of gradients.
    RMS_NORM_GATED = register(
        "rms_norm_gated",
        check=lambda op, x, gate, weight, eps, casting, group: _check(op, x, weight, eps, casting, group, gate=gate),
        result="x",
        gradient=_RmsNormGated.apply,
        sharding=on_rows(1),
    )
    RMS_NORM_GATED_BACKWARD = register(
        "rms_norm_gated_backward",
        check=lambda op, grad, x, gate, weight, eps, casting, group: _check(
            op, x, weight, eps, casting, group, gate=gate, grad=grad
        ),
        result=lambda x, weight: (
            *(_checks.like(x), _checks.like(x)),
            x.new_empty(0) if weight is None else _checks.like(weight),
        ),
        sharding=on_rows(2, sums=1),
    )
    L2_NORM = register(
        "l2_norm",
        check=lambda op, x, eps: _check(op, x, None, eps),
        result="x",
        gradient=_L2Norm.apply,
        sharding=on_rows(1),
    )
    L2_NORM_BACKWARD = register(
        "l2_norm_backward",
        check=lambda op, grad, x, eps: _check(op, x, None, eps, grad=grad),
        result="x",
        sharding=on_rows(1),
    )

_GATED = Route(RMS_NORM_GATED, _RmsNormGated)
_GATED_BACKWARD = Route(RMS_NORM_GATED_BACKWARD)
_L2 = Route(L2_NORM, _L2Norm)
_L2_BACKWARD = Route(L2_NORM_BACKWARD)
