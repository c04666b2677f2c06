"""Stochastic gradient descent with momentum, for parameters in CPU memory, in mixed precision, one pass per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from precast.optim import _rules
from precast.optim.cpu_base import CPUOptimizer

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["CPUSGD"]


class CPUSGD(CPUOptimizer):
    """``torch.optim.SGD`` for parameters in CPU memory, one pass over memory for each step.

    ``state_dict`` has the entries of torch, so each class loads the state of the other.

    Args:
        params: parameters in CPU memory, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more.
        momentum: 0 or more.
        dampening: the gradient enters the momentum with the factor ``1 - dampening``.
        weight_decay: 0 or more, added to the gradient.
        nesterov: use Nesterov momentum; needs a momentum above 0 and no dampening.
        maximize: maximize the objective instead of minimizing it.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.CPUSGD(model.parameters(), lr=1e-3, momentum=0.9)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = _rules.SGD

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**options, "nesterov": nesterov, "maximize": maximize, "state_dtype": state_dtype})
