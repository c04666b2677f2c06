"""Stochastic gradient descent with momentum, for parameters in CPU memory, in mixed precision, one pass per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from precast.ops.cpu_optim import SGD
from precast.optim.cpu_base import CPUOptimizer, check_numbers
from precast.optim.cpu_plan import Group, Row

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["CPUSGD"]


class CPUSGD(CPUOptimizer):
    """``torch.optim.SGD`` for parameters in CPU memory, one pass over memory for each step.

    ``state_dict`` has torch's entries, so each class loads the state of the other.

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

    rule = SGD
    torchs = torch.optim.SGD
    counts_steps = False
    state_names = ("momentum_buffer", None, None)

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

    def _names(self, group: Group) -> tuple[str | None, ...]:
        return self.state_names if group["momentum"] != 0 else (None, None, None)

    def _row(self, group: Group, fresh: bool) -> Row:
        return Row(
            float(group["lr"]),
            float(group["momentum"]),
            weight_decay=float(group["weight_decay"]),
            extra=0.0 if fresh else float(group["dampening"]),  # a new buffer is the gradient itself
            flag=group["nesterov"],
            maximize=group["maximize"],
        )

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError on numbers out of range."""
        check_numbers(options, "momentum")
        if options["nesterov"] and (options["momentum"] <= 0 or options["dampening"] != 0):
            found = f"momentum {options['momentum']} and dampening {options['dampening']}"
            raise ValueError(f"nesterov with {found}; needed a momentum above 0 and no dampening")
