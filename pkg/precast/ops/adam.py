"""One Adam or AdamW step over lists of CPU tensors (Kingma and Ba, 2014; Loshchilov and Hutter, 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from precast.ops import _checks
from precast.ops._dispatch import register


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
    """Updates ``params``, ``exp_avgs`` and ``exp_avg_sqs`` in place, in one pass and one parallel region.

    Tensors of one index have one shape. Parameters and gradients are float32, float16 or bfloat16, each by itself; the
    moments are float32 or of the parameter's dtype; the arithmetic is float32. ``copies``, one float16 or bfloat16
    tensor per parameter, or none at all, receive the rounded new parameters. ``grads`` are multiplied by ``grad_scale``
    as they are read and stay as they are. ``bias_correction1`` is ``1 - beta1**step``, and likewise for ``beta2``.
    ``decoupled`` decays the weights apart from the gradient (AdamW), else the decay joins it (Adam).
    """
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


def _check(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    copies: list[Tensor],
    *_: Any,
) -> None:
    _checks.adam_inputs(params, grads, exp_avgs, exp_avg_sqs, copies)


def _refuse_derivative(*_: Any) -> NoReturn:
    raise RuntimeError(
        "adam_: a derivative is wanted (grad mode is on and a tensor requires grad, or a transform is active), but an "
        "update in place has none; needed torch.no_grad()"
    )


ADAM_ = register(
    "adam_",
    check=_check,
    result=lambda *_: None,
    reference=_refuse_derivative,
    gradient=_refuse_derivative,
)
