"""One Adam step in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from precast.ops._reference import wide


def adam_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    copies: Sequence[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction1: float,
    bias_correction2: float,
    grad_scale: float,
    decoupled: bool,
    maximize: bool,
) -> None:
    """One Adam (or, with ``decoupled``, AdamW) step over every parameter, in place."""
    for index, (param, grad, m, v) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
        p = wide(param)
        m_wide, v_wide = wide(m).view(p.shape), wide(v).view(p.shape)
        g = grad.reshape(p.shape).to(p.dtype) * (-grad_scale if maximize else grad_scale)
        if decoupled:
            p = p * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * p
        m_wide = beta1 * m_wide + (1 - beta1) * g
        v_wide = beta2 * v_wide + (1 - beta2) * g * g
        denominator = v_wide.sqrt() / math.sqrt(bias_correction2) + eps
        p = p - lr / bias_correction1 * m_wide / denominator
        param.copy_(p)
        m.copy_(m_wide.view(m.shape))
        v.copy_(v_wide.view(v.shape))
        if copies:
            copies[index].copy_(p.view(copies[index].shape))
