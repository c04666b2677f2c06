"""The functions over lists of tensors, with the argument order of the older package and of apex's ``amp_C``.

They are called as ``multi_tensor_applier(function, noop_flag, tensor_lists, *args)`` calls them: ``chunk_size``, a flag
of one integer on the device, and lists of lists of tensors. ``chunk_size`` is not used, because the kernels have a size
of their own. A list may mix float32, float16 and bfloat16. Gradients are only read, by ``multi_tensor_lamb`` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from precast.compat.members import kernel
from precast.ops._updates import (
    ADAGRAD,
    ADAM,
    ALWAYS_ADAPT,
    DECOUPLED,
    LAMB,
    NESTEROV,
    SGD,
    SUMMED,
    UNCORRECTED,
)

__all__ = [
    "multi_tensor_adagrad",
    "multi_tensor_adam",
    "multi_tensor_axpby",
    "multi_tensor_l2norm",
    "multi_tensor_l2norm_mp",
    "multi_tensor_l2norm_scale",
    "multi_tensor_lamb",
    "multi_tensor_scale",
    "multi_tensor_sgd",
    "update_scale_hysteresis",
]


Lists: TypeAlias = "Sequence[Sequence[Tensor]]"


@torch.no_grad()
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    div_scale: float = -1.0,
) -> None:
    """One Adam step over gradients, parameters and the two averages; with ``mode`` 1 AdamW, with 0 Adam.

    A positive ``div_scale`` divides the gradients. ``noop_flag`` is not used: infinities reach the parameters.
    """
    grads, params, firsts, seconds = (list(tensors) for tensors in _counted(tensor_lists, 4))
    factor = 1.0 / div_scale if div_scale > 0 else 1.0
    kernel("multi_tensor_update_")(
        *(params, grads, firsts, seconds, [], [], None, None),
        *(_checked(step), factor, lr, beta1, beta2, epsilon, weight_decay, 0.0),
        *(ADAM, DECOUPLED * bool(mode) + UNCORRECTED * (not bias_correction)),
    )


@torch.no_grad()
def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    wd: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None:
    """One SGD step over gradients, parameters and momenta; nothing if ``noop_flag`` is not zero.

    A fourth list receives the rounded parameters. Gradients are multiplied by ``scale``. With ``first_run`` the
    momenta become the gradients. Without momentum, the momenta are neither read nor written.
    """
    grads, params, firsts, copies = (
        list(tensors) for tensors in (*_counted(tensor_lists, 3, 4), *([[]] * (4 - len(tensor_lists))))
    )
    flags = NESTEROV * bool(nesterov) + DECOUPLED * bool(wd_after_momentum)
    kernel("multi_tensor_update_")(
        *(params, grads, firsts if momentum != 0 else [], [], [], copies, noop_flag.float(), None),
        *(1.0 if first_run else 2.0, scale, lr, dampening, 0.0, 0.0, wd, momentum),
        *(SGD, flags),
    )


@torch.no_grad()
def multi_tensor_adagrad(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    epsilon: float,
    mode: int,
    weight_decay: float,
) -> None:
    """One Adagrad step over gradients, parameters and sums of squares.

    With ``mode`` 1 the parameters decay themselves, with 0 the decay is added to the gradients. ``noop_flag`` is
    not used.
    """
    grads, params, sums = (list(tensors) for tensors in _counted(tensor_lists, 3))
    kernel("multi_tensor_update_")(
        *(params, grads, sums, [], [], [], None, None),
        *(1.0, 1.0, lr, 0.0, 0.0, epsilon, weight_decay, 0.0),
        *(ADAGRAD, DECOUPLED * bool(mode)),
    )


@torch.no_grad()
def multi_tensor_lamb(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    mode: int,
    global_grad_norm: Tensor,
    max_grad_norm: float,
    use_nvlamb_python: bool | None = None,
) -> None:
    """One LAMB step over gradients, parameters and the two averages.

    With ``mode`` 1 the decay is part of the direction, with 0 it is added to the gradients. Gradients are divided
    by ``global_grad_norm / max_grad_norm`` if that is above 1. Without ``grad_averaging`` they enter the first
    average with a weight of one. With ``use_nvlamb_python``, steps without weight decay are scaled too.
    ``noop_flag`` is not used.
    """
    grads, params, firsts, seconds = (list(tensors) for tensors in _counted(tensor_lists, 4))
    adapts = bool(use_nvlamb_python) or weight_decay != 0
    flags = DECOUPLED * bool(mode) + ALWAYS_ADAPT * adapts
    flags += SUMMED * (not grad_averaging) + UNCORRECTED * (not bias_correction)
    share = global_grad_norm.reshape(()) / max_grad_norm
    kernel("multi_tensor_update_")(
        *(params, grads, firsts, seconds, [torch.empty_like(first) for first in firsts], []),
        *(None, torch.where(share > 1.0, share, 1.0)),  # a NaN in one gradient leaves other tensors alone
        *(_checked(step), 1.0, lr, beta1, beta2, epsilon, weight_decay, beta1),
        *(LAMB, flags),
    )


@torch.no_grad()
def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float) -> None:
    """Set the second list to ``scale`` times the first; set ``noop_flag`` to 1 if an element is not finite."""
    xs, outs = (list(tensors) for tensors in _counted(tensor_lists, 2))
    found = noop_flag.float()
    kernel("multi_tensor_axpby_")(outs, xs, [], scale, 0.0, None, found)
    noop_flag.copy_(found)


@torch.no_grad()
def multi_tensor_axpby(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, a: float, b: float, arg_to_check: int
) -> None:
    """Set the third list to ``a`` times the first plus ``b`` times the second.

    Sets ``noop_flag`` to 1 if an element is not finite: of the first list if ``arg_to_check`` is 0, of the second
    if it is 1, of either if it is -1.
    """
    xs, ys, outs = (list(tensors) for tensors in _counted(tensor_lists, 3))
    if arg_to_check not in (-1, 0, 1):
        raise ValueError(f"arg_to_check is {arg_to_check}; needed 0 or 1, or -1 for both")
    found = noop_flag.float()
    if arg_to_check >= 0:  # before a list that may be its own result is written
        finite = [tensor.isfinite().all() for tensor in (xs, ys)[arg_to_check]]
        found.masked_fill_(~torch.stack(finite).all(), 1.0)
    kernel("multi_tensor_axpby_")(outs, xs, ys, a, b, None, found if arg_to_check < 0 else None)
    noop_flag.copy_(found)


@torch.no_grad()
def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """The norm over all tensors (one element), and with ``per_tensor`` the norm of each, else an empty tensor.

    Sets ``noop_flag`` to 1 if the norm is not finite.
    """
    (tensors,) = _counted(tensor_lists, 1)
    total, squares = kernel("multi_tensor_l2norm")(list(tensors))
    noop_flag.masked_fill_(~total.isfinite(), 1)
    return total.reshape(1), squares.sqrt() if per_tensor else squares.new_empty(0)


def multi_tensor_l2norm_mp(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """``multi_tensor_l2norm``, also if ``noop_flag`` is set already."""
    return multi_tensor_l2norm(chunk_size, noop_flag, tensor_lists, per_tensor)


@torch.no_grad()
def multi_tensor_l2norm_scale(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """``multi_tensor_l2norm`` of the first list; then the second list becomes ``scale`` times the first."""
    xs, outs = (list(tensors) for tensors in _counted(tensor_lists, 2))
    found = multi_tensor_l2norm(chunk_size, noop_flag, [xs], per_tensor)
    kernel("multi_tensor_axpby_")(outs, xs, [], scale, 0.0, None, None)
    return found


def update_scale_hysteresis(
    current_scale: Tensor,
    growth_tracker: Tensor,
    hysteresis_tracker: Tensor,
    found_inf: Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    hysteresis: int,
) -> Tensor:
    """The next loss scale, in place, by torch's ops: it shrinks at the ``hysteresis``-th overflow in a row.

    It grows after ``growth_interval`` steps without overflow, unless it would be infinite. Returns ``current_scale``.
    """
    with torch.no_grad():
        overflow = found_inf > 0
        left = hysteresis_tracker - overflow.to(hysteresis_tracker.dtype)
        shrinks = overflow & (left <= 0)
        steps = growth_tracker + 1
        due = ~overflow & (steps == growth_interval)
        smaller = (current_scale.double() * backoff_factor).to(current_scale.dtype)
        larger = (current_scale.double() * growth_factor).to(current_scale.dtype)
        next_scale = torch.where(due & larger.isfinite(), larger, current_scale)
        current_scale.copy_(torch.where(shrinks, smaller, next_scale))
        growth_tracker.copy_(steps.masked_fill(overflow | due, 0))
        hysteresis_tracker.copy_(left.masked_fill(~overflow, hysteresis))
    return current_scale


def _counted(lists: Lists, *counts: int) -> Lists:
    if len(lists) not in counts:
        raise ValueError(f"tensor_lists has {len(lists)} lists; needed {' or '.join(map(str, counts))}")
    if not lists[0]:
        raise ValueError("the lists of tensor_lists are empty; needed one tensor or more")
    return lists


def _checked(step: int) -> float:
    if step < 1:
        raise ValueError(f"step is {step}; needed 1 or more")
    return float(step)
