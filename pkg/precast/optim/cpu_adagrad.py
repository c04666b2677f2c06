"""Adagrad for parameters in CPU memory, in mixed precision, one pass per step (Duchi, Hazan and Singer, 2011)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from precast.optim import _rules
from precast.optim.cpu_base import CPUOptimizer

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["CPUAdagrad"]


class CPUAdagrad(CPUOptimizer):
    """``torch.optim.Adagrad`` for parameters in CPU memory, one pass over memory for each step.

    ``state_dict`` has the entries of torch, so each class loads the state of the other. A sparse gradient, as of
    ``torch.nn.Embedding(sparse=True)``, updates only the rows that it has, and needs ``weight_decay=0``.

    Args:
        params: parameters in CPU memory, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more.
        lr_decay: the learning rate is divided by ``1 + steps * lr_decay``; 0 or more.
        weight_decay: 0 or more, added to the gradient.
        initial_accumulator_value: initial value of the sums of squares; 0 or more.
        eps: added to the denominator; 0 or more.
        maximize: maximize the objective instead of minimizing it.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.CPUAdagrad(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = _rules.ADAGRAD

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        options = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        more = {"initial_accumulator_value": initial_accumulator_value, "maximize": maximize}
        super().__init__(params, {**options, **more, "state_dtype": state_dtype})
        for group in self.param_groups:  # as in torch, whose step needs the states to exist
            for param in group["params"]:
                self.state[param] = self._new_state(group, param, {})
