"""Ops over lists of GPU tensors, with one launch per list: optimizer steps, norms, scaling and sums.

All tensors of a call are on one GPU. They may mix float32, float16 and bfloat16. The tensors at one index are
contiguous, or dense in the same layout. Arithmetic is in float32. Sums have a fixed order, so the same input gives
the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import GeneratorType
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import are_bare, register
from precast.ops import _checks
from precast.ops._fx import is_traced, recorded
from precast.ops._shards import is_dtensor, is_partial, local_of, summed
from precast.ops._updates import RULES
from precast.ops._written import check_readable
from precast.ops.multi_tensor._lists import check_given, check_lists, check_members, check_scalar

STALE, UNCOUNTED = 0, 1  # Outcome of csrc/multi_tensor/host.cpp


def multi_tensor_l2norm(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """``sqrt(sum(x**2))`` over all elements of a list of GPU tensors, in one launch.

    Args:
        tensors: all on one GPU; float32, float16 or bfloat16, in any mix.

    Returns:
        The norm, and the sum of squares of each tensor; both float32, on the GPU.

    Raises:
        RuntimeError: a tensor has another dtype or device.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        grads = [torch.ones(4, device="cuda"), torch.ones(5, device="cuda")]
        norm, squares = precast.ops.multi_tensor_l2norm(grads)  # 3., [4., 5.]
    """
    if is_traced(tensors):
        return recorded(multi_tensor_l2norm, **locals())  # type: ignore[no-any-return]
    try:
        total: Tensor
        total, squares = L2NORM(list(tensors))
    except _checks.CONFUSED:
        _checks.explain(multi_tensor_l2norm, locals())
    return total, squares


def multi_tensor_scale_(
    outs: Sequence[Tensor],
    xs: Sequence[Tensor],
    scale: float,
    *,
    factor: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """``outs = scale * factor * xs`` for lists of GPU tensors, in one launch.

    Args:
        outs: written; all on one GPU; float32, float16 or bfloat16, in any mix.
        xs: with the shapes of ``outs``; an out may be its own x.
        scale: a number.
        factor: one float32 on the GPU, or None for 1.
        found_inf: one float32 on the GPU, or None; set to 1 if an element of ``xs`` is infinite or NaN, else unchanged.

    Raises:
        RuntimeError: the lists do not fit each other, or a derivative is required.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        grads = [torch.ones(4, device="cuda")]
        precast.ops.multi_tensor_scale_(grads, grads, 0.5)
    """
    if is_traced(outs):
        recorded(multi_tensor_scale_, **locals())
        return
    try:
        AXPBY_(list(outs), list(xs), [], scale, 0.0, factor, found_inf)
    except _checks.CONFUSED:
        _checks.explain(multi_tensor_scale_, locals())


def multi_tensor_axpby_(
    outs: Sequence[Tensor],
    xs: Sequence[Tensor],
    ys: Sequence[Tensor],
    a: float,
    b: float,
    *,
    found_inf: Tensor | None = None,
) -> None:
    """``outs = a * xs + b * ys`` for lists of GPU tensors, each product and sum in float32, in one launch.

    Args:
        outs: written; all on one GPU; float32, float16 or bfloat16, in any mix.
        xs: with the shapes of ``outs``; an out may be its own x.
        ys: with the shapes of ``outs``; an out may be its own y.
        a: a number.
        b: a number.
        found_inf: one float32 on the GPU, or None; set to 1 if an element of ``xs`` or ``ys`` is infinite or NaN, else
            unchanged.

    Raises:
        RuntimeError: the lists do not fit each other, or a derivative is required.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        xs, ys = [torch.ones(4, device="cuda")], [torch.ones(4, device="cuda")]
        precast.ops.multi_tensor_axpby_(xs, xs, ys, 0.9, 0.1)
    """
    if is_traced(outs):
        recorded(multi_tensor_axpby_, **locals())
        return
    try:
        AXPBY_(list(outs), list(xs), list(ys), a, b, None, found_inf)
    except _checks.CONFUSED:
        _checks.explain(multi_tensor_axpby_, locals())


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """``torch.nn.utils.clip_grad_norm_``; with the 2-norm on one GPU, two launches and no waiting for the GPU.

    With the 2-norm on one GPU, gradients are read once, and written only if they are clipped. For any other norm, and
    for gradients on the CPU, on several devices, in float64 or sparse, this function calls the function of torch.

    Args:
        parameters: one parameter or several.
        max_norm: the gradients are scaled to this norm if their norm is larger.
        norm_type: a number, or "inf".
        error_if_nonfinite: raise if the norm is infinite or NaN, before any gradient is changed; waits for the GPU.
        foreach: passed to the function of torch.

    Returns:
        The norm before clipping; 0 if there is no gradient. If some gradients are DTensors, the norm is that of all
        their shards, as a DTensor; every rank must call this.

    Raises:
        RuntimeError: the norm is infinite or NaN, and ``error_if_nonfinite`` is set.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        model(x).sum().backward()
        norm = precast.ops.clip_grad_norm_(model.parameters(), max_norm=1.0)
    """
    # torch warns of a generator without parameters. To keep that warning, it gets a generator if the caller passed one.
    if is_traced(parameters):
        return recorded(clip_grad_norm_, **locals())  # type: ignore[no-any-return]
    try:
        again = isinstance(parameters, GeneratorType)
        params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        grads = [param.grad for param in params if param.grad is not None]
        if float(norm_type) != 2.0 or not _on_one_gpu(list(map(local_of, grads))):
            given = (param for param in params) if again else params
            return torch.nn.utils.clip_grad_norm_(given, max_norm, float(norm_type), error_if_nonfinite, foreach)
        with torch.no_grad():
            sharded = any(map(is_dtensor, grads))
            total = _norm_of_shards(grads) if sharded else multi_tensor_l2norm(grads)[0]
            if error_if_nonfinite and not bool(total.isfinite()):
                raise RuntimeError(
                    f"clip_grad_norm_: the norm of the gradients is {float(total)}; needed a finite one, or "
                    "error_if_nonfinite=False; no gradient was changed"
                )
            written = list(map(local_of, grads))
            multi_tensor_scale_(written, written, 1.0, factor=(float(max_norm) / (total + 1e-6)).clamp(max=1.0))
            total = total.to(functools.reduce(torch.promote_types, {grad.dtype for grad in grads}))
            return _replicated(total, grads) if sharded else total
    except _checks.CONFUSED:
        _checks.explain(clip_grad_norm_, locals())


def _norm_of_shards(grads: Sequence[Tensor]) -> Tensor:
    # The terms of a partial gradient must be added before they are squared.
    read = [cast("Any", grad).full_tensor() if is_partial(grad) else grad for grad in grads]
    _, squares = multi_tensor_l2norm(list(map(local_of, read)))
    return summed(squares, read).sum().sqrt()


def _replicated(total: Tensor, grads: Sequence[Tensor]) -> Tensor:
    first: Any = next(filter(is_dtensor, grads))
    replicated: Tensor = type(first).from_local(total, first.device_mesh, run_check=False)
    return replicated


def on_gpu(tensor: Tensor) -> bool:
    """Whether the device has kernels: an NVIDIA GPU, or an AMD or Intel GPU through plain torch."""
    return tensor.is_cuda or tensor.is_xpu


def _on_one_gpu(grads: Sequence[Tensor]) -> bool:
    """Whether the kernels take these gradients as they are."""
    return bool(grads) and all(
        on_gpu(grad)
        and grad.device == grads[0].device
        and grad.dtype in _checks.FLOAT_TYPES
        and grad.layout is torch.strided
        and (grad.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(grad))
        and are_bare((grad,))
        for grad in grads
    )


def _refusal(op: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise RuntimeError(
            f"{op}: a derivative is wanted (grad mode is on and a tensor requires grad, or a transform is active), but "
            "an update in place has none; needed torch.no_grad()"
        )

    return refuse


def _check_l2norm(tensors: Sequence[Tensor]) -> None:
    op = "multi_tensor_l2norm"
    check_lists(op, {"tensors": tensors})
    # With a gradient, torch's own ops read them.
    check_readable(op, **{f"tensors[{index}]": tensor for index, tensor in enumerate(tensors)})


def _check_update(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    thirds: Sequence[Tensor],
    copies: Sequence[Tensor],
    found_inf: Tensor | None,
    grad_scale: Tensor | None,
    *numbers: Any,
) -> None:
    op, (kind, _) = "multi_tensor_update_", numbers[-2:]
    others = {"firsts": firsts, "seconds": seconds, "thirds": thirds, "copies": copies}
    check_given(op, {"params": params, "grads": grads, **others})
    check_members(op, (firsts, seconds, thirds), kind, apply=False)
    step, beta1, beta2 = numbers[0], *numbers[3:5]
    if RULES[kind].counts:
        _checks.require(step >= 1, lambda: f"{op}: step is {step:g}; needed 1 or more")
    for name, beta in (("beta1", beta1), ("beta2", beta2)) if RULES[kind].averages else ():
        _checks.require(0 <= beta < 1, lambda: f"{op}: {name} is {beta:g}; needed 0 or more, and less than 1")  # noqa: B023
    for name, scalar in (("found_inf", found_inf), ("grad_scale", grad_scale)):
        check_scalar(op, name, scalar, params[0])


def _check_axpby(
    outs: Sequence[Tensor],
    xs: Sequence[Tensor],
    ys: Sequence[Tensor],
    a: float,
    b: float,
    factor: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    op = "multi_tensor_axpby_"
    check_lists(op, {"outs": outs, "xs": xs, **({"ys": ys} if ys else {})})
    for name, scalar in (("factor", factor), ("found_inf", found_inf)):
        check_scalar(op, name, scalar, outs[0])


with namespace.family("multi_tensor", __package__):
    L2NORM = register(
        "multi_tensor_l2norm",
        check=_check_l2norm,
        result=lambda tensors: (
            tensors[0].new_empty((), dtype=torch.float32),
            tensors[0].new_empty((len(tensors),), dtype=torch.float32),
        ),
        sharding=None,
    )
    AXPBY_ = register(
        "multi_tensor_axpby_",
        check=_check_axpby,
        result=lambda *_: None,
        reference=_refusal("multi_tensor_axpby_"),
        gradient=_refusal("multi_tensor_axpby_"),
        sharding=None,
    )
    # One step over lists, without a plan: the functions that older packages have. ``step`` is that of every tensor,
    # from 1. Gradients are multiplied by ``factor`` and divided by ``grad_scale`` as they are read.
    register(
        "multi_tensor_update_",
        check=_check_update,
        result=lambda *_: None,
        reference=_refusal("multi_tensor_update_"),
        gradient=_refusal("multi_tensor_update_"),
        sharding=None,
    )

# Internal ops of the optimizers, called outside of Dynamo and autograd. They work on memory that only a plan knows, so
# they cannot be traced and have no fake kernels.
plan: Callable[..., int] = namespace.overload("multi_tensor_plan")._op
step_: Callable[..., int] = namespace.overload("multi_tensor_step_")._op
forget: Callable[..., None] = namespace.overload("multi_tensor_forget")._op
