"""Stochastic gradient descent with momentum, for parameters in CPU memory, in mixed precision, one pass per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from precast.ops.cpu_optim import SGD
from precast.optim.cpu_base import CPUOptimizer, check_numbers
from precast.optim.cpu_plan import Group, Row

__all__ = ["CPUSGD"]


class CPUSGD(CPUOptimizer):
    """SGD, with momentum (Nesterov's if asked for), over float32, float16 or bfloat16; see ``CPUAdam`` for the formats.

    The numbers are those of ``torch.optim.SGD``, and ``state_dict`` has its entries; each loads the other's.
    """

    rule = SGD
    counts_steps = False
    state_names = ("momentum_buffer", None, None)

    def __init__(
        self,
        params: Any,
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
        dampening = 0.0 if fresh else float(group["dampening"])  # a buffer begins as the first gradient
        numbers = (float(group["lr"]), float(group["momentum"]), 0.0, 0.0, float(group["weight_decay"]))
        return (*numbers, dampening, group["nesterov"], group["maximize"])

    def _check_options(self, options: Mapping[str, Any]) -> None:
        check_numbers(options, "momentum")
        if options["nesterov"] and (options["momentum"] <= 0 or options["dampening"] != 0):
            found = f"momentum {options['momentum']} and dampening {options['dampening']}"
            raise ValueError(f"nesterov with {found}; needed a momentum above 0 and no dampening")
