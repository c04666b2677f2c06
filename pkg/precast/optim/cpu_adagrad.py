"""Adagrad for parameters in CPU memory, in mixed precision, one pass per step (Duchi, Hazan and Singer, 2011)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from precast.ops.cpu_optim import ADAGRAD
from precast.optim.cpu_base import CPUOptimizer, check_numbers
from precast.optim.cpu_plan import Group, Row

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["CPUAdagrad"]


class CPUAdagrad(CPUOptimizer):
    """``torch.optim.Adagrad`` for parameters in CPU memory, one pass over memory for each step.

    ``state_dict`` has torch's entries, so each class loads the state of the other. A sparse gradient, such as that of
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

    rule = ADAGRAD
    torchs = torch.optim.Adagrad
    counts_steps = True
    takes_sparse = True
    state_names = (None, "sum", None)

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

    def _first_value(self, group: Group) -> float:
        return float(group["initial_accumulator_value"])

    def _names(self, group: Group) -> tuple[str | None, ...]:
        return self.state_names

    def _row(self, group: Group, fresh: bool) -> Row:
        eps, decay, lr_decay = float(group["eps"]), float(group["weight_decay"]), float(group["lr_decay"])
        rate = float(group["lr"])
        return Row(rate, eps=eps, weight_decay=decay, extra=lr_decay, maximize=group["maximize"])

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError on numbers out of range."""
        check_numbers(options, "lr_decay", "initial_accumulator_value", "eps")
