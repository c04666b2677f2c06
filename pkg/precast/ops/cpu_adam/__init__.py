"""One Adam or AdamW step over lists of CPU tensors (Kingma and Ba, 2014; Loshchilov and Hutter, 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast.ops import _checks
from precast.ops._fx import is_traced, recorded


def adam_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    copies: Sequence[Tensor] = (),
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction1: float,
    bias_correction2: float,
    grad_scale: float = 1.0,
    decoupled: bool = True,
    maximize: bool = False,
) -> None:
    """``p -= lr * m / (sqrt(v) + eps)``, a step of Adam or AdamW over lists of CPU tensors, in place.

    Args:
        params: updated; float32, float16, bfloat16 or any mix of them.
        grads: dense, with the shapes of ``params``; multiplied by ``grad_scale`` as they are read, and not modified.
        exp_avgs: averages of the gradients, updated; float32 or of the parameter's dtype.
        exp_avg_sqs: averages of their squares, updated; the same.
        copies: float16 or bfloat16, one for each parameter, or empty; they receive the rounded new parameters.
        lr: learning rate.
        beta1: decay rate of ``exp_avgs``.
        beta2: decay rate of ``exp_avg_sqs``.
        eps: added to the denominator.
        weight_decay: decay of the parameters.
        bias_correction1: ``1 - beta1**step``, with steps from 1.
        bias_correction2: ``1 - beta2**step``.
        grad_scale: factor of the gradients.
        decoupled: decay the parameter itself (AdamW) instead of adding the decay to the gradient (Adam).
        maximize: maximize the objective instead of minimizing it.

    Raises:
        RuntimeError: the lists do not fit each other, or a derivative is required.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        p, g, m, v = ([torch.ones(8)] for _ in range(4))
        rates = dict(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0)
        precast.ops.adam_(p, g, m, v, **rates, bias_correction1=0.1, bias_correction2=0.001)
    """
    if is_traced(params):
        recorded(adam_, **locals())
        return
    try:
        for index, grad in enumerate(grads):
            if grad.layout is not torch.strided:
                layout = str(grad.layout).removeprefix("torch.")
                raise RuntimeError(f"adam_: grads[{index}] has the layout {layout}; a dense tensor is needed")
        ADAM_(
            list(params),
            list(grads),
            list(exp_avgs),
            list(exp_avg_sqs),
            list(copies),
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
            bias_correction1,
            bias_correction2,
            grad_scale,
            decoupled,
            maximize,
        )
    except _checks.CONFUSED:
        _checks.explain(adam_, locals())


def _check(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    copies: list[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction1: float,
    bias_correction2: float,
    *_: Any,
) -> None:
    """Raise unless the lists have the same length and the tensors at each index can be updated together."""
    states = {"exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs}
    _checks.updated_lists("adam_", params, {"grads": grads, **states, **({"copies": copies} if copies else {})})
    _checks.states("adam_", params, states)
    _checks.copies_of("adam_", copies)
    _checks.require(
        bias_correction1 > 0 and bias_correction2 > 0,
        lambda: (
            f"adam_: bias_correction1 is {bias_correction1:g} and bias_correction2 {bias_correction2:g}; "
            "needed numbers above 0"
        ),
    )


def _refuse_derivative(*_: Any) -> NoReturn:
    raise RuntimeError(
        "adam_: a derivative is wanted (grad mode is on and a tensor requires grad, or a transform is active), but an "
        "update in place has none; needed torch.no_grad()"
    )


with namespace.family("cpu_adam", __package__):
    ADAM_ = register(
        "adam_",
        check=_check,
        result=lambda *_: None,
        reference=_refuse_derivative,
        gradient=_refuse_derivative,
    )
