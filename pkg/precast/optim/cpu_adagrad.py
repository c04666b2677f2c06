"""Adagrad for parameters in CPU memory, in mixed precision, one pass per step (Duchi, Hazan and Singer, 2011)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from precast.ops.cpu_optim import ADAGRAD
from precast.optim.cpu_base import CPUOptimizer, check_numbers
from precast.optim.cpu_plan import Group, Row

__all__ = ["CPUAdagrad"]


class CPUAdagrad(CPUOptimizer):
    """Adagrad over float32, float16 or bfloat16; see ``CPUAdam`` for the formats.

    The numbers are those of ``torch.optim.Adagrad``, and ``state_dict`` has its entries; each loads the other's.
    """

    rule = ADAGRAD
    counts_steps = True
    state_names = (None, "sum", None)

    def __init__(
        self,
        params: Any,
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
        for group in self.param_groups:  # as torch's, whose own step wants the states to be there
            for param in group["params"]:
                self.state[param] = self._new_state(group, param, {})

    def _first_value(self, group: Group) -> float:
        return float(group["initial_accumulator_value"])

    def _names(self, group: Group) -> tuple[str | None, ...]:
        return self.state_names

    def _row(self, group: Group, fresh: bool) -> Row:
        numbers = (float(group["lr"]), 0.0, 0.0, float(group["eps"]), float(group["weight_decay"]))
        return (*numbers, float(group["lr_decay"]), False, group["maximize"])

    def _check_options(self, options: Mapping[str, Any]) -> None:
        check_numbers(options, "lr_decay", "initial_accumulator_value", "eps")
