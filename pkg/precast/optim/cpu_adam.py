"""Adam and AdamW for parameters in CPU memory, in mixed precision, one pass per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from precast.compat.adam import CPUAdamOptimizer
from precast.optim import _rules
from precast.optim.cpu_base import CPUOptimizer

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["CPUAdam", "CPUAdamOptimizer"]


class CPUAdam(CPUOptimizer):
    """AdamW (``decoupled=True``) or Adam for parameters in CPU memory, in one pass over memory per step.

    The arithmetic is in float32 for every dtype. The usual mixed-precision loop updates float32 masters from
    low-precision gradients, and rounds them into the model in the same pass::

        optimizer = CPUAdam(masters)
        optimizer.step(grads=[p.grad for p in model.parameters()], copies=list(model.parameters()))

    ``state_dict`` has the entries of ``torch.optim.AdamW``, so each class loads the state of the other. ``GradScaler``
    needs no extra pass: its step unscales the gradients in place, as the fused step of torch does.

    Args:
        params: parameters in CPU memory, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more.
        betas: decay rates of the averages of the gradient and of its square; from 0 up to but not including 1.
        eps: added to the denominator; 0 or more.
        weight_decay: 0 or more.
        decoupled: decay the parameter itself (AdamW) instead of adding the decay to the gradient (Adam).
        amsgrad: use the largest average of squares so far.
        maximize: maximize the objective instead of minimizing it.
        bias_correction: divide the moments by ``1 - beta**step``, as the paper does.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.CPUAdam(model.parameters(), lr=1e-3, weight_decay=0.01)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = _rules.ADAMW

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
        *,
        amsgrad: bool = False,
        maximize: bool = False,
        bias_correction: bool = True,
        state_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decoupled": decoupled}
        more = {"amsgrad": amsgrad, "maximize": maximize, "bias_correction": bias_correction}
        super().__init__(params, {**options, **more, "state_dtype": state_dtype})

    def _as_torchs(self, group: dict[str, Any]) -> dict[str, Any]:
        decoupled = group.pop("decoupled")
        return super()._as_torchs({**group, "decoupled_weight_decay": decoupled})

    def __setstate__(self, state: dict[str, Any]) -> None:
        for group in state["param_groups"]:
            # torch distinguishes AdamW from Adam by the class or by decoupled_weight_decay.
            if "decoupled_weight_decay" in group:
                group.setdefault("decoupled", group["decoupled_weight_decay"])
        super().__setstate__(state)
