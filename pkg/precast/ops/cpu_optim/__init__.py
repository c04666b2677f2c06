"""One step of a CPU optimizer over all its parameters: the internal op of ``precast.optim``, used by its plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast._dispatch.in_place import below
from precast.ops import _checks
from precast.ops._updates import ON_CPU

COLUMNS = 8  # of the numbers: those of _updates.Numbers, the flags, and how many parameters have them

Lists = tuple[Sequence[Tensor], ...]  # params, three lists of states, steps, copies


def _check(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    third: Sequence[Tensor],
    steps: Sequence[Tensor],
    copies: Sequence[Tensor],
    plan: Tensor,
    numbers: Tensor,
    grad_scale: float,
    rule: int,
) -> None:
    """Raise unless the nonempty tensors at each index can be updated together."""
    op = "optimize_"
    _checks.require(rule in ON_CPU, lambda: f"{op}: there is no rule {rule}")
    for name, tensor in (
        ("plan", plan),
        ("numbers", numbers),
        *((f"steps[{i}]", step) for i, step in enumerate(steps)),
    ):
        message = f"{op}: {name} is on {tensor.device}; all tensors must be on cpu"
        _checks.require(all(tensor.device.type == param.device.type for param in params[:1]), lambda: message)  # noqa: B023
    states = {"first": first, "second": second, "third": third}
    given = {name: tensors for name, tensors in {**states, "copies": copies}.items() if tensors}
    lists = {
        name: [
            like if tensor.numel() == 0 and name != "grads" else tensor
            for tensor, like in zip(tensors, params, strict=False)
        ]
        for name, tensors in given.items()
    }
    _checks.updated_lists(op, params, {"grads": grads, **lists})
    _checks.states(op, params, {name: lists[name] for name in states if name in lists})
    _checks.copies_of(op, copies)


def _refuse_derivative(*_: Any) -> NoReturn:
    raise RuntimeError(
        "optimize_: a derivative is wanted (grad mode is on and a tensor requires grad, or a transform is active), but "
        "an update in place has none; needed torch.no_grad()"
    )


with namespace.family("cpu_optim", __package__):
    OPTIMIZE_ = register(
        "optimize_",
        check=_check,
        result=lambda *_: None,
        reference=_refuse_derivative,
        gradient=_refuse_derivative,
    )
_call = below(OPTIMIZE_)

# One step from a plan, numbers, a scale and a factor for the gradients in place (0: they are only read), with the
# parameters' own gradients. If a tensor has changed, it returns False and does nothing. Without numbers, it only
# compares. It raises the version counters itself. It cannot be traced, because plans cannot.
optimize_again: Callable[[Tensor, Tensor, float, float], bool] = namespace.overload("optimize_again_")._op

_NO_LISTS: Lists = ((), (), (), (), (), ())
NO_NUMBERS = torch.empty(0, dtype=torch.float64, device="cpu")
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def optimize(
    grads: Sequence[Tensor], lists: Lists | None, plan: Tensor, numbers: Tensor, scale: float, rule: int
) -> None:
    """Run one step. The number in ``plan``, if any, stands for earlier lists, which are used if ``lists`` is empty.

    The caller keeps the Python objects of the lists until ``forget``; the plan has no references of its own. This
    bypasses autograd, so the caller must raise the version counters.
    """
    params, first, second, third, steps, copies = lists or _NO_LISTS
    _call(params, grads, first, second, third, steps, copies, plan, numbers, scale, rule)


def forget(plan: Tensor) -> None:
    """Release the lists kept by ``plan``, if there are any.

    This is called when an optimizer is garbage-collected, possibly during a trace or a transform. So it calls the CPU
    kernel directly, bypassing every mode, and creates no tensor.
    """
    OPTIMIZE_.redispatch(_CPU, [], [], [], [], [], [], [], plan, NO_NUMBERS, 1.0, 0)
