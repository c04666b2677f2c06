"""Lion for parameters in CPU memory, in mixed precision, one pass per step (Chen and others, 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from precast.optim import _rules
from precast.optim.cpu_base import CPUOptimizer

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["CPULion"]


class CPULion(CPUOptimizer):
    """Lion (Chen and others, 2023) for parameters in CPU memory: the step is the sign of a momentum.

    A NaN gradient makes its parameter NaN.

    Args:
        params: parameters in CPU memory, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more.
        betas: weights of the momentum in the step and in its own update; from 0 up to but not including 1.
        weight_decay: 0 or more; decays the parameter itself, not through the gradient.
        maximize: maximize the objective instead of minimizing it.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.CPULion(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = _rules.LION

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        options = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize, "state_dtype": state_dtype})
