"""Softmax of scaled scores over the last dimension: plain, masked, and causal.

Arithmetic is in float32, and the result is rounded once, to the dtype of ``x``. A scaled score that is NaN or
positive infinity makes its row NaN, as in torch, unless it is masked. ``fully_masked`` defines the result for a row
with all columns masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import on_rows, register
from precast._dispatch.routes import Route
from precast.ops import _checks
from precast.ops._checks import FLOAT_TYPES, dtype_name, require
from precast.ops._fx import Proxy, recorded

FullyMasked: TypeAlias = Literal["zero", "uniform"]

_FULLY_MASKED: dict[str, bool] = {"zero": False, "uniform": True}


def scaled_softmax(x: Tensor, scale: float) -> Tensor:
    """``softmax(scale * x, -1)``. Differentiable.

    Args:
        x: float32, float16 or bfloat16, with at least one dimension, on the CPU or a GPU.
        scale: factor of the scores.

    Returns:
        A contiguous tensor with the shape and dtype of ``x``.

    Raises:
        RuntimeError: ``x`` has another dtype or no dimension.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        scores = torch.randn(2, 4, 16, 16)
        y = precast.ops.scaled_softmax(scores, 0.125)
    """
    try:
        y: Tensor = _scaled(x, scale)
    except _checks.CONFUSED:
        _checks.explain(scaled_softmax, locals())
    return y


def scaled_masked_softmax(
    x: Tensor,
    mask: Tensor,
    scale: float,
    *,
    masked_value: float | Literal["-inf"] = "-inf",
    fully_masked: FullyMasked = "zero",
) -> Tensor:
    """The softmax of ``scale * x`` over the columns whose mask is zero. Differentiable.

    Args:
        x: ``(batch, heads, queries, columns)``, or fewer dimensions; float32, float16 or bfloat16.
        mask: bool or uint8, not zero where masked; the last dimension of ``x``, and 1 or its size in each other one.
        scale: factor of the scores.
        masked_value: the scaled score of masked columns; ``"-inf"`` gives 0, and Megatron uses -10000.0.
        fully_masked: the result for a fully masked row: ``"zero"``, or ``"uniform"``, one over the columns.

    Returns:
        A contiguous tensor with the shape and dtype of ``x``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device.
        ValueError: ``fully_masked`` is neither of the two.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        scores, mask = torch.randn(2, 4, 16, 16), torch.zeros(2, 1, 16, 16, dtype=torch.bool)
        y = precast.ops.scaled_masked_softmax(scores, mask, 0.125)
    """
    try:
        try:
            value = float(masked_value)
        except TypeError:
            if isinstance(x, Proxy):
                return recorded(scaled_masked_softmax, **locals())  # type: ignore[no-any-return]
            raise
        y: Tensor = _masked(x, mask, scale, value, _uniform(fully_masked))
    except _checks.CONFUSED:
        _checks.explain(scaled_masked_softmax, locals())
    return y


def scaled_upper_triang_masked_softmax(x: Tensor, scale: float) -> Tensor:
    """``softmax(scale * x)`` over the columns up to the diagonal of a square ``x``; zero after it. Differentiable.

    Args:
        x: ``(..., s, s)``; float32, float16 or bfloat16, on the CPU or a GPU.
        scale: factor of the scores.

    Returns:
        A contiguous tensor with the shape and dtype of ``x``.

    Raises:
        RuntimeError: ``x`` has another dtype, or is not square.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        scores = torch.randn(8, 16, 16)
        y = precast.ops.scaled_upper_triang_masked_softmax(scores, 0.125)
    """
    try:
        y: Tensor = _upper_triang(x, scale)
    except _checks.CONFUSED:
        _checks.explain(scaled_upper_triang_masked_softmax, locals())
    return y


def scaled_aligned_causal_softmax(x: Tensor, scale: float) -> Tensor:
    """``softmax(scale * x)`` with a causal mask that is aligned to the last column. Differentiable.

    Query ``q`` attends to the columns up to ``q + columns - queries``. The result is zero in all other columns.

    Args:
        x: ``(..., queries, columns)``; float32, float16 or bfloat16, on the CPU or a GPU.
        scale: factor of the scores.

    Returns:
        A contiguous tensor with the shape and dtype of ``x``.

    Raises:
        RuntimeError: ``x`` has another dtype, or fewer than two dimensions.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        scores = torch.randn(8, 4, 16)
        y = precast.ops.scaled_aligned_causal_softmax(scores, 0.125)
    """
    try:
        y: Tensor = _aligned_causal(x, scale)
    except _checks.CONFUSED:
        _checks.explain(scaled_aligned_causal_softmax, locals())
    return y


def _uniform(fully_masked: str) -> bool:
    try:
        return _FULLY_MASKED[fully_masked]
    except KeyError:
        names = ", ".join(map(repr, _FULLY_MASKED))
        raise ValueError(f"fully_masked is {fully_masked!r}; needed one of {names}") from None


# ---- gradients, all computed from the result ----


class _Scaled(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], x: Tensor, scale: float) -> Tensor:
        y = compute(x, scale)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (y,) = ctx.saved_tensors
        return None, _backward(grad, y, ctx.scale, False), None


class _Causal(_Scaled):
    """As :class:`_Scaled`, up to the diagonal."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (y,) = ctx.saved_tensors
        return None, _backward(grad, y, ctx.scale, True), None


class _Masked(torch.autograd.Function):
    """As above. A masked column always has a zero gradient, even if its share is not zero, so the mask is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., Tensor],
        x: Tensor,
        mask: Tensor,
        scale: float,
        masked_value: float,
        uniform: bool,
    ) -> Tensor:
        y = compute(x, mask, scale, masked_value, uniform)
        ctx.scale = scale
        shares = uniform or masked_value != -math.inf
        ctx.save_for_backward(*((y, mask) if shares else (y,)))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        y, *mask = ctx.saved_tensors
        grad_x: Tensor = _backward(grad, y, ctx.scale, False)
        if mask:
            grad_x = grad_x.masked_fill(mask[0] != 0, 0)
        return None, grad_x, None, None, None, None


# ---- checks that need only metadata, with the kernels' messages ----


def _check_x(op: str, x: Tensor, name: str = "x", *, dimensions: int = 1) -> None:
    require(x.dtype in FLOAT_TYPES, lambda: f"{op}: {name} is {dtype_name(x)}; needed float32, float16 or bfloat16")
    wanted = "one dimension" if dimensions == 1 else "two dimensions"
    require(x.dim() >= dimensions, lambda: f"{op}: {name} has shape {tuple(x.shape)}; needed at least {wanted}")


def _check_square(op: str, x: Tensor) -> None:
    _check_x(op, x, dimensions=2)
    require(
        x.shape[-1] == x.shape[-2],
        lambda: f"{op}: x has shape {tuple(x.shape)}; needed the last two dimensions to be equal",
    )


def _check_masked(op: str, x: Tensor, mask: Tensor, masked_value: float) -> None:
    _check_x(op, x)
    require(mask.dtype in (torch.bool, torch.uint8), lambda: f"{op}: mask is {dtype_name(mask)}; needed bool or uint8")
    require(mask.device == x.device, lambda: f"{op}: mask is on {mask.device} and x on {x.device}; needed one device")
    require(x.dim() <= 4, lambda: f"{op}: x has shape {tuple(x.shape)}; needed at most four dimensions")

    def message() -> str:
        shapes = f"mask has shape {tuple(mask.shape)} and x has {tuple(x.shape)}"
        return f"{op}: {shapes}; needed x's last dimension, and 1 or x's size in the others"

    require(1 <= mask.dim() <= x.dim(), message)
    require(mask.shape[-1] == x.shape[-1], message)
    for i in range(2, mask.dim() + 1):
        if mask.shape[-i] != 1:
            require(mask.shape[-i] == x.shape[-i], message)
    largest = torch.finfo(torch.float32).max
    require(masked_value <= largest, lambda: f"{op}: masked_value is {masked_value:g}; needed a finite number or -inf")


def _check_backward(op: str, grad: Tensor, y: Tensor, causal: bool) -> None:
    _check_x(op, y, "y", dimensions=2 if causal else 1)
    require(
        grad.dtype == y.dtype, lambda: f"{op}: grad is {dtype_name(grad)} and y is {dtype_name(y)}; needed one dtype"
    )
    require(grad.device == y.device, lambda: f"{op}: grad is on {grad.device} and y on {y.device}; needed one device")
    require(grad.shape == y.shape, lambda: f"{op}: grad has shape {tuple(grad.shape)}; needed {tuple(y.shape)}, as y")


# A causal row must know its index, so sharding keeps queries together. torch's cache of placements does not distinguish
# the values of `causal` (only integers and tensors), so the gradient has one rule.
with namespace.family("softmax", __package__), namespace.family("softmax_backward", __package__):
    SCALED_SOFTMAX = register(
        "scaled_softmax",
        check=_check_x,
        result="x",
        gradient=_Scaled.apply,
        sharding=on_rows(1),
    )
    SCALED_MASKED_SOFTMAX = register(
        "scaled_masked_softmax",
        check=_check_masked,
        result="x",
        gradient=_Masked.apply,
        sharding=on_rows(1),
    )
    SCALED_UPPER_TRIANG_MASKED_SOFTMAX = register(
        "scaled_upper_triang_masked_softmax",
        check=_check_square,
        result="x",
        gradient=_Causal.apply,
        sharding=on_rows(1, kept=2),
    )
    SCALED_ALIGNED_CAUSAL_SOFTMAX = register(
        "scaled_aligned_causal_softmax",
        check=lambda op, x: _check_x(op, x, dimensions=2),
        result="x",
        gradient=_Causal.apply,
        sharding=on_rows(1, kept=2),
    )
    SOFTMAX_BACKWARD = register(
        "scaled_softmax_backward",
        check=_check_backward,
        result="grad",
        sharding=on_rows(1, kept=2),
    )

_scaled = Route(SCALED_SOFTMAX, _Scaled)
_masked = Route(SCALED_MASKED_SOFTMAX, _Masked)
_upper_triang = Route(SCALED_UPPER_TRIANG_MASKED_SOFTMAX, _Causal)
_aligned_causal = Route(SCALED_ALIGNED_CAUSAL_SOFTMAX, _Causal)
_backward = Route(SOFTMAX_BACKWARD)
