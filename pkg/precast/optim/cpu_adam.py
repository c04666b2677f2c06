"""Adam and AdamW for parameters in CPU memory, in mixed precision, one pass per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from precast.extension.compat import CPUAdamOptimizer
from precast.ops.cpu_optim import ADAM
from precast.optim.cpu_base import CPUOptimizer, check_betas, check_numbers
from precast.optim.cpu_plan import Group, Row

__all__ = ["CPUAdam", "CPUAdamOptimizer"]


class CPUAdam(CPUOptimizer):
    """AdamW (``decoupled=True``) or Adam with the decay added to the gradient, over float32, float16 or bfloat16.

    The arithmetic is float32 whatever the tensors are. The moments are float32 too, or, with ``state_dtype=None``, of
    their parameter's dtype, as ``torch.optim`` keeps them. The usual mixed-precision loop, float32 masters updated from
    low-precision gradients and rounded into the model in the same pass::

        optimizer = CPUAdam(masters)
        optimizer.step(grads=[p.grad for p in model.parameters()], copies=list(model.parameters()))

    ``state_dict`` has the entries of ``torch.optim.AdamW``; each loads the other's. ``GradScaler`` is served without an
    extra pass: gradients are unscaled as they are read, and stay as they are.
    """

    rule = ADAM
    counts_steps = True
    state_names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
        *,
        amsgrad: bool = False,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decoupled": decoupled}
        super().__init__(params, {**options, "amsgrad": amsgrad, "maximize": maximize, "state_dtype": state_dtype})

    def __setstate__(self, state: dict[str, Any]) -> None:
        for group in state["param_groups"]:
            # AdamW and Adam of torch say it with their class or with decoupled_weight_decay.
            if "decoupled_weight_decay" in group:
                group.setdefault("decoupled", group["decoupled_weight_decay"])
        super().__setstate__(state)

    def _names(self, group: Group) -> tuple[str | None, ...]:
        return self.state_names if group["amsgrad"] else ("exp_avg", "exp_avg_sq", None)

    def _row(self, group: Group, fresh: bool) -> Row:
        beta1, beta2 = group["betas"]
        decay = float(group["weight_decay"])
        numbers = (float(group["lr"]), float(beta1), float(beta2), float(group["eps"]), decay)
        return (*numbers, 0.0, group["decoupled"], group["maximize"])

    def _check_options(self, options: Mapping[str, Any]) -> None:
        check_numbers(options, "eps")
        check_betas(options["betas"])
