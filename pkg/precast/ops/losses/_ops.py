"""The ops behind the losses: options, gradients, checks and registration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import means_its_memory, register
from precast._dispatch.in_place import mark_written
from precast._dispatch.routes import Route
from precast.ops._checks import FLOAT_TYPES, dtype_name, like, require, same_device
from precast.ops._written import check_readable


def check_options(op: str, reduction: str, num_items: int | Tensor | None, ignore_index: int) -> None:
    """Raise unless the options have values that fit each other."""
    if not isinstance(reduction, str):
        raise TypeError(f"{op}: reduction is a {type(reduction).__name__}; needed 'mean', 'sum' or 'none'")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{op}: reduction is {reduction!r}; needed 'mean', 'sum' or 'none'")
    if num_items is not None and reduction != "mean":
        raise ValueError(f"{op}: num_items_in_batch with reduction {reduction!r}; needed 'mean', which divides by it")
    if isinstance(num_items, Tensor) and num_items.numel() != 1:
        raise ValueError(f"{op}: num_items_in_batch has shape {tuple(num_items.shape)}; needed one number")
    if not -(1 << 63) <= ignore_index < 1 << 63:
        raise ValueError(f"{op}: ignore_index is {ignore_index}; needed an integer of 64 bits")


def check_smoothing(op: str, share: float) -> None:
    require(0 <= share <= 1, lambda: f"{op}: label_smoothing is {share:g}; needed a number from 0 to 1")


def class_weights(op: str, weight: Tensor | None, x: Tensor, shape: torch.Size, called: str) -> Tensor | None:
    """The weights in float32, one for each class."""
    if weight is None:
        return None
    if not torch.compiler.is_compiling():  # it cannot trace messages; the ops check what they get
        check_readable(op, weight=weight)
        same_device(op, "weight", weight, x, called)
        require(weight.shape == shape, lambda: f"{op}: weight has shape {tuple(weight.shape)}; needed {tuple(shape)}")
    if weight.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{op}: weight requires grad, and the loss has no gradient for it; needed weight.detach()")
    return weight.float()


def reduced(losses: Tensor, target: Tensor, reduction: str, num_items: int | Tensor | None) -> Tensor:
    """The sum of losses that are multiplied already; a mean over no rows is NaN."""
    total = losses if reduction == "none" or losses.dim() == 0 else losses.sum()
    return total + torch.nan if reduction == "mean" and num_items is None and target.numel() == 0 else total


def factors(
    target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, num_items: int | Tensor | None
) -> Tensor | None:
    """What the losses are multiplied by (None: 1), then the sum of the weights if there are any."""
    if reduction != "mean":
        return None if weight is None else torch.stack([weight.new_ones(()), weight.sum()])
    if num_items is not None:
        total = torch.as_tensor(num_items, dtype=torch.float32, device=target.device)
    elif weight is None:
        total = (target != ignore_index).sum(dtype=torch.float32)
    else:
        inside = (target != ignore_index) & (target >= 0) & (target < weight.numel())  # the op refuses the others
        total = torch.where(inside, weight[torch.where(inside, target, 0).long()], 0.0).sum()
    scale = total.reciprocal().reshape(1)
    return scale if weight is None else torch.cat([scale, weight.sum().reshape(1)])


def _refuse_needed(logits: Tensor) -> None:
    """Raise if autograd needs the values of the logits. Other readers are found by torch's version counters."""
    if not means_its_memory(logits):
        return  # a graph makes a copy where it needs one
    if logits.is_leaf:
        why = "logits is a leaf that requires grad"
    elif logits._base is not None and logits._base.is_leaf and logits._base.requires_grad:
        why = "logits is a view of a leaf that requires grad"
    elif any(_is(logits, getattr(logits.grad_fn, name, None)) for name in ("_saved_result", "_saved_output")):
        why = f"{type(logits.grad_fn).__name__} has saved logits for its own gradient"
    else:
        return
    raise RuntimeError(f"cross_entropy: in_place, but {why}; needed in_place=False; nothing was written")


def _is(tensor: Tensor, saved: Any) -> bool:
    return isinstance(saved, Tensor) and saved.data_ptr() == tensor.data_ptr()


def refuse_second_derivative(op: str) -> None:
    """Called in a backward pass; it records a graph only for ``create_graph=True``."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"{op}: the gradient was computed in the forward pass and cannot be differentiated again "
            "(create_graph=True); needed torch.nn.functional.cross_entropy"
        )


def scale_rows(grad: Tensor, factor: Tensor) -> Tensor:
    """Multiply a gradient by ``factor``, one number or one per row, in memory that no version counter watches."""
    if not may_write(factor):
        return (grad * factor.reshape(*factor.shape, *(1,) * (grad.dim() - factor.dim()))).to(grad.dtype)
    same_device("cross_entropy", "the gradient of the loss", factor, grad, "logits")
    with torch._C._AutoDispatchBelowADInplaceOrView():
        _SCALE(grad, factor.reshape(-1))
    return grad


def may_write(slope: Tensor) -> bool:
    """Whether a backward pass may write over what it has: a graph may run again, and a batched slope is many slopes."""
    return not torch.compiler.is_compiling() and means_its_memory(slope)


def needs_slope(logits: Tensor) -> bool:
    """Whether a gradient may be stored only once its last factor is known, which is in the backward pass.

    Divided by thousands of rows, most elements are zero in float16, and the scale of a ``GradScaler`` comes too late.
    """
    return logits.dtype == torch.float16


def times(factors: Tensor | None, slope: Tensor) -> Tensor:
    """The factors of the losses times the slope of each row."""
    each = slope.reshape(-1)
    return each if factors is None else torch.cat([each * factors[:1], factors[1:]])


class _Held(torch.autograd.Function):
    """A node that keeps tensors for another one, apart from what that one saves. Hooks for saved tensors see them."""

    @staticmethod
    def forward(ctx: Any, like: Tensor, *tensors: Tensor | None) -> Tensor:
        ctx.save_for_backward(*tensors)
        return like.clone()


def keep(ctx: Any, inputs: Sequence[Tensor | None], grads: Sequence[Tensor | None]) -> None:
    """Save a function's inputs and, for the first backward pass, gradients that are computed already.

    Gradients have a node of their own, so that the first pass does not ask whether the inputs were changed in place.
    """
    ctx.count, ctx.held = len(inputs), None
    if torch.compiler.is_compiling():
        ctx.save_for_backward(*inputs, *grads)
        return
    ctx.save_for_backward(*inputs)
    if grads:
        with torch.enable_grad():
            like = torch.empty(0, device="cpu", requires_grad=True)
            ctx.held = _Held.apply(like, *grads)  # type: ignore[no-untyped-call]


def taken(ctx: Any) -> Sequence[Tensor | None]:
    """The gradients that ``keep`` has saved; none if they were not computed, or are those of an earlier pass."""
    if ctx.held is None:
        return ctx.saved_tensors[ctx.count :] if torch.compiler.is_compiling() else ()
    grads, ctx.held = ctx.held.grad_fn.saved_tensors, None
    return grads  # type: ignore[no-any-return]


_TENSORS = 4  # of the arguments of a loss; three options follow
_NO_OTHERS = (None,) * 6  # the gradients of all arguments after the logits


class _Loss(torch.autograd.Function):
    """The gradient is computed with the loss, or in the backward pass: if it needs the slope, or in a second pass."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Any], *given: Any) -> tuple[Tensor, Tensor]:
        losses, lse, *grads = compute(*given) if needs_slope(given[0]) else _WITH_GRAD(*given)
        keep(ctx, given[:_TENSORS], grads)
        ctx.options = given[_TENSORS:]
        ctx.mark_non_differentiable(lse)
        return losses, lse

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> tuple[Any, ...]:
        refuse_second_derivative("cross_entropy")
        grads = [scale_rows(grad, slope) for grad in taken(ctx) if grad is not None]
        if not grads:
            *inputs, factors = ctx.saved_tensors
            grads.append(_WITH_GRAD(*inputs, times(factors, slope), *ctx.options)[2])
        return None, *grads, *_NO_OTHERS


class _InPlace(torch.autograd.Function):
    """The gradient lies over the logits, from the backward pass on if it needs the slope."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Any], logits: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        _refuse_needed(logits)
        if needs_slope(logits):
            losses, lse = CROSS_ENTROPY(logits, *others)
            mark_written([logits])  # who has saved them finds out in each dtype
            ctx.save_for_backward(logits, *others[: _TENSORS - 1])
        else:
            losses, lse = compute(logits, *others)
            ctx.save_for_backward(logits)
        ctx.options, ctx.taken = others[_TENSORS - 1 :], False
        ctx.mark_non_differentiable(lse)
        return losses, lse

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> tuple[Any, ...]:
        refuse_second_derivative("cross_entropy")
        if ctx.taken:
            raise RuntimeError(
                "cross_entropy: a second backward pass, but with in_place the first one used the only gradient up; "
                "needed in_place=False"
            )
        ctx.taken = True
        grad, *others = ctx.saved_tensors
        grad = grad.detach()
        if not others:
            return None, scale_rows(grad, slope), *_NO_OTHERS
        target, weight, factors = others
        given = (grad, target, weight, times(factors, slope), *ctx.options)
        if not may_write(slope):
            return None, _WITH_GRAD(*given)[2], *_NO_OTHERS
        IN_PLACE(*given)
        return None, grad, *_NO_OTHERS


def _refuse_gradient(*_: Any) -> NoReturn:
    raise RuntimeError(
        "cross_entropy: this inner op has no gradient; needed precast.ops.cross_entropy, or torch.no_grad()"
    )


# ---- checks that need only metadata, with the kernels' messages ----


def _check_numbers(op: str, name: str, vector: Tensor, logits: Tensor, *sizes: int) -> None:
    require(vector.dtype == torch.float32, lambda: f"{op}: {name} is {dtype_name(vector)}; needed float32")
    same_device(op, name, vector, logits, "logits")
    require(
        vector.dim() == 1 and any(vector.shape[0] == size for size in sizes),
        lambda: f"{op}: {name} has shape {tuple(vector.shape)}; needed {' or '.join(f'({size},)' for size in sizes)}",
    )


def _check_logits(op: str, logits: Tensor, name: str = "logits") -> None:
    require(
        logits.dtype in FLOAT_TYPES,
        lambda: f"{op}: {name} is {dtype_name(logits)}; needed float32, float16 or bfloat16",
    )
    require(
        logits.dim() >= 1 and logits.shape[-1] > 0,
        lambda: f"{op}: {name} has shape {tuple(logits.shape)}; needed (..., classes) with at least one class",
    )


def _check_target(op: str, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
    _check_logits(op, logits)
    require(
        target.dtype in (torch.int64, torch.int32),
        lambda: f"{op}: target is {dtype_name(target)}; needed int64 or int32, the number of a class per row",
    )
    same_device(op, "target", target, logits, "logits")
    require(
        target.shape == logits.shape[:-1],
        lambda: (
            f"{op}: target has shape {tuple(target.shape)} and logits {tuple(logits.shape)}; "
            "needed the shape of logits without the last dimension"
        ),
    )
    if weight is not None:
        _check_numbers(op, "weight", weight, logits, logits.shape[-1])


def _check(
    op: str, logits: Tensor, target: Tensor, weight: Tensor | None, factors: Tensor | None, label_smoothing: float
) -> None:
    _check_target(op, logits, target, weight)
    if factors is not None:
        sums = 0 if weight is None else 1
        _check_numbers(op, "factors", factors, logits, 1 + sums, target.numel() + sums)
    check_smoothing(op, label_smoothing)


def _check_backward(op: str, logits: Tensor, target: Tensor, given: Tensor, weight: Tensor | None) -> None:
    _check_target(op, logits, target, weight)
    require(given.dtype == torch.float32, lambda: f"{op}: given is {dtype_name(given)}; needed float32")
    same_device(op, "given", given, logits, "logits")
    require(
        given.dim() == 2 and given.shape[0] == 4 and given.shape[1] == target.numel(),
        lambda: f"{op}: given has shape {tuple(given.shape)}; needed (4, {target.numel()})",
    )


def _check_scale(op: str, grad: Tensor, factor: Tensor) -> None:
    _check_logits(op, grad, "grad")
    require(factor.dtype == torch.float32, lambda: f"{op}: factor is {dtype_name(factor)}; needed float32")
    same_device(op, "factor", factor, grad, "grad")
    rows = grad.numel() // grad.shape[-1]
    require(
        factor.numel() == 1 or (factor.dim() == 1 and factor.shape[0] == rows),
        lambda: f"{op}: factor has shape {tuple(factor.shape)}; needed one element, or ({rows},)",
    )


def _numbers_like(target: Tensor) -> Tensor:
    return torch.empty(target.shape, dtype=torch.float32, device=target.device)


def _two(target: Tensor) -> tuple[Tensor, Tensor]:
    return _numbers_like(target), _numbers_like(target)


with namespace.family("cross_entropy", __package__):
    CROSS_ENTROPY = register("cross_entropy", check=_check, result=_two, gradient=_Loss.apply)
    CROSS_ENTROPY_WITH_GRAD = register(
        "cross_entropy_with_grad",
        check=_check,
        result=lambda logits, target: (*_two(target), like(logits)),
        gradient=_refuse_gradient,
    )
    CROSS_ENTROPY_WITH_GRAD_ = register(
        "cross_entropy_with_grad_",
        check=_check,
        result=_two,
        gradient=_InPlace.apply,
    )
    CROSS_ENTROPY_BACKWARD = register("cross_entropy_backward", check=_check_backward, result="logits")
    CROSS_ENTROPY_SCALE_ = register("cross_entropy_scale_", check=_check_scale, result=None, gradient=_refuse_gradient)

LOSS = Route(CROSS_ENTROPY, _Loss)
_WITH_GRAD = Route(CROSS_ENTROPY_WITH_GRAD, _refuse_gradient)
IN_PLACE = Route(CROSS_ENTROPY_WITH_GRAD_, _InPlace)
_SCALE = Route(CROSS_ENTROPY_SCALE_, _refuse_gradient)
