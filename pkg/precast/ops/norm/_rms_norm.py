"""RMS normalisation, alone or fused with a residual addition (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from precast._dispatch import namespace
from precast._dispatch.formulas import on_rows, register
from precast._dispatch.routes import Route, is_compiling
from precast.ops import _checks
from precast.ops._fx import Proxy, recorded
from precast.ops.norm import _shapes

Casting: TypeAlias = Literal["none", "llama", "gemma"]

# The op schemas' codes for castings.
CASTINGS: dict[str, int] = {"none": 0, "llama": 1, "gemma": 2}
LLAMA = CASTINGS["llama"]
GEMMA = CASTINGS["gemma"]


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    casting: Casting = "none",
    normalized_shape: int | Sequence[int] | None = None,
) -> Tensor:
    """``x / sqrt(mean(x**2, -1) + eps) * weight``. Differentiable.

    Args:
        x: ``(..., hidden)``; float32, float16 or bfloat16, on the CPU or a GPU. It may be a jagged nested tensor.
        weight: ``(hidden,)``, of the device of ``x`` and of its dtype or float32; None: ones, or zeros for ``"gemma"``.
        eps: added to the mean square; 0 or more.
        casting: ``"none"`` rounds a low-precision result once, at the end; ``"llama"`` also before ``* weight``;
            ``"gemma"`` once, with ``1 + weight`` for the weight.
        normalized_shape: the last dimensions to normalise, if there are several; ``weight`` has this shape.

    Returns:
        A contiguous tensor with the shape and dtype of ``x``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device.
        ValueError: ``casting`` is none of the three.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, weight = torch.randn(8, 4096), torch.ones(4096)
        y = precast.ops.rms_norm(x, weight, eps=1e-6)
    """
    try:
        try:
            code = CASTINGS[casting]
        except KeyError:
            if isinstance(x, Proxy):
                return recorded(rms_norm, **locals())  # type: ignore[no-any-return]
            raise _unknown(casting) from None
        if weight is None or normalized_shape is not None:
            return _over_shape("rms_norm", rms_norm, (x,), weight, eps, casting, normalized_shape)  # type: ignore[no-any-return]
        if not is_compiling() and forward_ad._current_level < 0:
            return _RMS_NORM.call(x, weight, eps, code)  # type: ignore[no-any-return]
        return _rms_norm_dispatched(x, weight, eps, code)
    except _checks.CONFUSED:
        _checks.explain(rms_norm, locals(), takes_jagged=True)


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    casting: Casting = "none",
    normalized_shape: int | Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """``(rms_norm(sum, weight), sum)`` with ``sum = x + residual``, in one pass. Differentiable.

    Args:
        x: as in :func:`rms_norm`.
        residual: with the shape, dtype and device of ``x``.
        weight: as in :func:`rms_norm`.
        eps: added to the mean square; 0 or more.
        casting: ``"none"`` rounds a low-precision result once, at the end; ``"llama"`` also before ``* weight``;
            ``"gemma"`` once, with ``1 + weight`` for the weight.
        normalized_shape: as in :func:`rms_norm`.

    Returns:
        The norm and the sum, both contiguous. The sum is rounded to the dtype of ``x`` first.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device.
        ValueError: ``casting`` is none of the three.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, residual, weight = torch.randn(8, 64), torch.randn(8, 64), torch.ones(64)
        y, total = precast.ops.fused_add_rms_norm(x, residual, weight)
    """
    try:
        try:
            code = CASTINGS[casting]
        except KeyError:
            if isinstance(x, Proxy):
                return recorded(fused_add_rms_norm, **locals())  # type: ignore[no-any-return]
            raise _unknown(casting) from None
        if weight is None or normalized_shape is not None:
            rows = (x, residual)
            return _over_shape("fused_add_rms_norm", fused_add_rms_norm, rows, weight, eps, casting, normalized_shape)  # type: ignore[no-any-return]
        if not is_compiling() and forward_ad._current_level < 0:
            return _FUSED_ADD_RMS_NORM.call(x, residual, weight, eps, code)  # type: ignore[no-any-return]
        return _fused_add_rms_norm_dispatched(x, residual, weight, eps, code)
    except _checks.CONFUSED:
        _checks.explain(fused_add_rms_norm, locals(), takes_jagged=True)


def fused_add_rms_norm_(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, *, casting: Casting = "none"
) -> tuple[Tensor, Tensor]:
    """:func:`fused_add_rms_norm` in place, for inference: ``residual`` becomes the sum, ``x`` its norm.

    Args:
        x: ``(..., hidden)``; float32, float16 or bfloat16. Its last dimension is contiguous.
        residual: like ``x``, which it must not overlap; its last dimension is contiguous.
        weight: ``(hidden,)``, of the dtype and device of ``x``.
        eps: added to the mean square; 0 or more.
        casting: ``"none"`` rounds a low-precision result once, at the end; ``"llama"`` also before ``* weight``;
            ``"gemma"`` once, with ``1 + weight`` for the weight.

    Returns:
        ``(x, residual)``.

    Raises:
        RuntimeError: a tensor has another shape, dtype, device or layout, or a gradient is required.
        ValueError: ``casting`` is none of the three.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, residual, weight = torch.randn(8, 64), torch.randn(8, 64), torch.ones(64)
        precast.ops.fused_add_rms_norm_(x, residual, weight)
    """
    try:
        try:
            code = CASTINGS[casting]
        except KeyError:
            if isinstance(x, Proxy):
                return recorded(fused_add_rms_norm_, **locals())  # type: ignore[no-any-return]
            raise _unknown(casting) from None
        _FUSED_ADD_RMS_NORM_(x, residual, weight, eps, code)
    except _checks.CONFUSED:
        _checks.explain(fused_add_rms_norm_, locals())
    return x, residual


def _over_shape(
    op: str,
    norm: Callable[..., Any],
    rows: tuple[Tensor, ...],
    weight: Tensor | None,
    eps: float,
    casting: Casting,
    normalized_shape: int | Sequence[int] | None,
) -> Any:
    """The norm without a weight, or over several dimensions."""
    if isinstance(rows[0], Proxy):
        given = {"weight": weight, "eps": eps, "casting": casting, "normalized_shape": normalized_shape}
        return recorded(norm, **dict(zip(("x", "residual"), rows, strict=False)), **given)
    shape = rows[0].shape[-1:] if normalized_shape is None else normalized_shape
    if _shapes.is_jagged(rows[0]):
        dimensions = 1 if isinstance(shape, int) else len(shape)
        inner = lambda *values: _over_shape(op, norm, values, weight, eps, casting, shape)  # noqa: E731
        return _shapes.over_jagged(op, inner, rows, dimensions)
    if weight is None:
        make = rows[0].new_zeros if casting == "gemma" else rows[0].new_ones
        weight = make(shape)
    call = lambda *tensors: norm(*tensors, eps, casting=casting)  # noqa: E731
    return _shapes.over_several(op, call, rows, shape, (weight,))


def _jagged(
    op: str, norm: Callable[..., Any], rows: tuple[Tensor, ...], weight: Tensor, eps: float, casting: Casting
) -> Any:
    return _shapes.over_jagged(op, lambda *values: norm(*values, weight, eps, casting=casting), rows, 1)


_NAMES: dict[int, Casting] = {code: name for name, code in CASTINGS.items()}  # type: ignore[misc]


def _rms_norm_dispatched(x: Tensor, weight: Tensor, eps: float, code: int) -> Tensor:
    if isinstance(x, Proxy):
        return recorded(rms_norm, x=x, weight=weight, eps=eps, casting=_NAMES[code])  # type: ignore[no-any-return]
    if x.is_nested:
        return _jagged("rms_norm", rms_norm, (x,), weight, eps, _NAMES[code])  # type: ignore[no-any-return]
    if _shapes.is_exporting_onnx():
        return _by_torch(x, weight, eps, code)
    y: Tensor = RMS_NORM(x, weight, eps, code)
    return y


def _by_torch(x: Tensor, weight: Tensor, eps: float, code: int) -> Tensor:
    """The norm by torch's own ops, for exporters that know no others."""
    wide = x.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if code == LLAMA:
        return (normal.to(x.dtype) * weight).to(x.dtype)
    return (normal * (weight.float() + 1.0 if code == GEMMA else weight.float())).to(x.dtype)


def _fused_add_rms_norm_dispatched(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, code: int
) -> tuple[Tensor, Tensor]:
    if isinstance(x, Proxy):
        given = {"weight": weight, "eps": eps, "casting": _NAMES[code]}
        return recorded(fused_add_rms_norm, x=x, residual=residual, **given)  # type: ignore[no-any-return]
    if x.is_nested:
        return _jagged("fused_add_rms_norm", fused_add_rms_norm, (x, residual), weight, eps, _NAMES[code])  # type: ignore[no-any-return]
    if _shapes.is_exporting_onnx():
        total = x + residual
        return _by_torch(total, weight, eps, code), total
    both: tuple[Tensor, Tensor] = FUSED_ADD_RMS_NORM(x, residual, weight, eps, code)
    return both


def casting_code(casting: str) -> int:
    """The number the schemas use, or a ValueError that lists the names."""
    try:
        return CASTINGS[casting]
    except KeyError:
        raise _unknown(casting) from None


def _unknown(casting: object) -> ValueError:
    return ValueError(f"casting is {casting!r}; needed one of {', '.join(map(repr, CASTINGS))}")


class _RmsNorm(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Tensor], x: Tensor, weight: Tensor, eps: float, casting: int
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.casting = eps, casting
        return compute(x, weight, eps, casting)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        grad_x, grad_weight = _RMS_NORM_BACKWARD(grad, x, weight, ctx.eps, ctx.casting)
        return None, grad_x, grad_weight, None, None


class _FusedAddRmsNorm(torch.autograd.Function):
    """As above. The sum is saved instead of the two inputs, because it is a result anyway."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., tuple[Tensor, Tensor]],
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        casting: int,
    ) -> tuple[Tensor, Tensor]:
        y, total = compute(x, residual, weight, eps, casting)
        ctx.set_materialize_grads(False)  # autograd's zeros are plain tensors, even if the results are DTensors
        ctx.save_for_backward(total, weight)
        ctx.eps, ctx.casting = eps, casting
        return y, total

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_sum: Tensor | None) -> tuple[Any, ...]:
        total, weight = ctx.saved_tensors
        grad_y = torch.zeros_like(total) if grad_y is None else grad_y
        grad_sum = torch.zeros_like(total) if grad_sum is None else grad_sum
        grad_x, grad_weight = _FUSED_ADD_RMS_NORM_BACKWARD(grad_y, grad_sum, total, weight, ctx.eps, ctx.casting)
        return None, grad_x, grad_x, grad_weight, None, None


_refuse_gradient = _checks.no_gradient(
    "fused_add_rms_norm_",
    "the inputs would be written over; needed precast.ops.fused_add_rms_norm, or torch.no_grad()",
)


def _check(op: str, x: Tensor, weight: Tensor, eps: float, casting: int, **like_x: Tensor) -> None:
    """Raise unless ``weight`` fits ``x``'s last dimension and each of ``like_x`` has ``x``'s shape."""
    _checks.rows(op, x)
    _checks.require(casting in CASTINGS.values(), lambda: f"{op}: casting is {casting}; needed 0, 1 or 2")
    _checks.row_tensors(op, x, eps, {"weight": weight}, like_x)


with namespace.family("rms_norm", __package__), namespace.family("rms_norm_backward", __package__):
    # The backward ops have no gradient formula: the reference computes gradients of gradients (create_graph=True).
    RMS_NORM = register(
        "rms_norm",
        check=_check,
        result="x",
        gradient=_RmsNorm.apply,
        sharding=on_rows(1),
    )
    RMS_NORM_BACKWARD = register(
        "rms_norm_backward",
        check=_check,
        result=lambda x, weight: (_checks.like(x), _checks.like(weight)),
        sharding=on_rows(1, sums=1),
    )
    FUSED_ADD_RMS_NORM = register(
        "fused_add_rms_norm",
        check=_check,
        result=lambda x: (_checks.like(x), _checks.like(x)),
        gradient=_FusedAddRmsNorm.apply,
        sharding=on_rows(2),
    )
    FUSED_ADD_RMS_NORM_BACKWARD = register(
        "fused_add_rms_norm_backward",
        check=lambda sum, **given: _check(x=sum, **given),  # noqa: A006 - of the schema
        result=lambda sum, weight: (_checks.like(sum), _checks.like(weight)),  # noqa: A006
        sharding=on_rows(1, sums=1),
    )
    FUSED_ADD_RMS_NORM_ = register(
        "fused_add_rms_norm_",
        check=_check,
        result=None,
        gradient=_refuse_gradient,
    )

_RMS_NORM = Route(RMS_NORM, _RmsNorm, _rms_norm_dispatched)
_RMS_NORM_BACKWARD = Route(RMS_NORM_BACKWARD)
_FUSED_ADD_RMS_NORM = Route(FUSED_ADD_RMS_NORM, _FusedAddRmsNorm, _fused_add_rms_norm_dispatched)
_FUSED_ADD_RMS_NORM_BACKWARD = Route(FUSED_ADD_RMS_NORM_BACKWARD)
_FUSED_ADD_RMS_NORM_ = Route(FUSED_ADD_RMS_NORM_, _refuse_gradient)
