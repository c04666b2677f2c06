"""Ops over lists of GPU tensors, one launch for a whole list: the optimizers' steps, and norms, scaling and sums.

All tensors of a call are on one GPU, float32, float16 or bfloat16, each by itself, contiguous or dense in one layout.
Arithmetic is in float32; sums have a fixed order, so that the same input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from precast._load import namespace
from precast.ops import _checks, _reference
from precast.ops._dispatch import register

# What csrc/multi_tensor numbers: Kind and Flag of args.h, and Outcome of host.cpp.
ADAM, SGD, ADAGRAD, LION, LAMB = range(5)
MAXIMIZE, DECOUPLED, NESTEROV, ALWAYS_ADAPT = 1, 2, 4, 8
STALE, UNCOUNTED = 0, 1


def multi_tensor_l2norm(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The root of the sum of all squares, and the sum of squares of each tensor; both float32, on the GPU."""
    total: Tensor
    total, squares = L2NORM(list(tensors))
    return total, squares


def multi_tensor_scale_(
    outs: Sequence[Tensor], xs: Sequence[Tensor], scale: float, *, factor: Tensor | None = None, found_inf: Any = None
) -> None:
    """``outs = scale * factor * xs``. ``factor`` is one float32 on the GPU.

    ``found_inf``, likewise, becomes 1 if an element of ``xs`` is infinite or NaN, and stays as it is if none is.
    """
    AXPBY_(list(outs), list(xs), [], scale, 0.0, factor, found_inf)


def multi_tensor_axpby_(
    outs: Sequence[Tensor], xs: Sequence[Tensor], ys: Sequence[Tensor], a: float, b: float, *, found_inf: Any = None
) -> None:
    """``outs = a * xs + b * ys``, each product and sum in float32. An out may be its own x or y."""
    AXPBY_(list(outs), list(xs), list(ys), a, b, None, found_inf)


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """``torch.nn.utils.clip_grad_norm_`` for the 2-norm: gradients are read once, and written only if they are clipped.

    Returns the norm that they had. Nothing waits for the GPU.
    """
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [param.grad for param in params if param.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    with torch.no_grad():
        total, _ = multi_tensor_l2norm(grads)
        multi_tensor_scale_(grads, grads, 1.0, factor=(max_norm / (total + 1e-6)).clamp(max=1.0))
    return total


def _refuse_derivative(*_: Any) -> NoReturn:
    raise RuntimeError(
        "multi_tensor_axpby_: a derivative is wanted (grad mode is on and a tensor requires grad, or a transform is "
        "active), but an update in place has none; needed torch.no_grad()"
    )


L2NORM = register(
    "multi_tensor_l2norm",
    check=lambda tensors: _checks.list_inputs("multi_tensor_l2norm", {"tensors": tensors}),
    result=lambda tensors: (
        tensors[0].new_empty((), dtype=torch.float32),
        tensors[0].new_empty((len(tensors),), dtype=torch.float32),
    ),
    reference=_reference.multi_tensor_l2norm,
)
AXPBY_ = register(
    "multi_tensor_axpby_",
    check=lambda outs, xs, ys, *_: _checks.list_inputs(
        "multi_tensor_axpby_", {"outs": outs, "xs": xs, **({"ys": ys} if ys else {})}
    ),
    result=lambda *_: None,
    reference=_refuse_derivative,
    gradient=_refuse_derivative,
)

# The optimizers' own. They are called outside of Dynamo and autograd, and stand for memory that only a plan knows: no
# trace of them would mean anything, so they have no fake kernels.
plan: Callable[..., int] = namespace.overload("multi_tensor_plan")._op
step_: Callable[..., int] = namespace.overload("multi_tensor_step_")._op
forget: Callable[..., None] = namespace.overload("multi_tensor_forget")._op
