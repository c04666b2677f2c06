"""Lion for parameters in CPU memory, in mixed precision, one pass per step (Chen and others, 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from precast.ops.cpu_optim import LION
from precast.optim.cpu_base import CPUOptimizer, check_betas, check_numbers
from precast.optim.cpu_plan import Group, Row

__all__ = ["CPULion"]


class CPULion(CPUOptimizer):
    """Lion, steps by the sign of a momentum, over float32, float16 or bfloat16; see ``CPUAdam`` for the formats.

    The decay is decoupled. A gradient that is NaN makes its parameter NaN.
    """

    rule = LION
    counts_steps = False
    state_names = ("exp_avg", None, None)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        options = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize, "state_dtype": state_dtype})

    def _names(self, group: Group) -> tuple[str | None, ...]:
        return self.state_names

    def _row(self, group: Group, fresh: bool) -> Row:
        beta1, beta2 = group["betas"]
        numbers = (float(group["lr"]), float(beta1), float(beta2), 0.0, float(group["weight_decay"]))
        return (*numbers, 0.0, True, group["maximize"])

    def _check_options(self, options: Mapping[str, Any]) -> None:
        check_numbers(options)
        check_betas(options["betas"])
