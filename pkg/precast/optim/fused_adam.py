"""Adam and AdamW on the GPU, all parameters in one launch."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from precast.ops.multi_tensor import ADAM, DECOUPLED, MAXIMIZE
from precast.optim.fused_base import FusedOptimizer


class FusedAdam(FusedOptimizer):
    """Adam with the decay added to the gradient, as ``torch.optim.Adam``, or ``decoupled=True``: AdamW.

    Parameters and gradients are float32, float16 or bfloat16; the arithmetic is float32, and so are the moments, or,
    with ``state_dtype=None``, of their parameter's dtype, as ``torch.optim`` keeps them. With ``master_weights=True``
    float16 and bfloat16 parameters have a float32 master in their state, which is updated and rounded into the
    parameter in the same pass. ``max_grad_norm`` clips by the 2-norm of all gradients, which are read once more and not
    written.

    ``capturable`` is here for its name: every step can be captured. A learning rate that is a tensor on the GPU is read
    at each replay. ``GradScaler`` is served without an extra pass, and without waiting for the GPU: gradients are
    unscaled as they are read, stay as they are, and a step that overflowed is skipped and not counted.

    ``state_dict`` has the entries of ``torch.optim.Adam`` and ``AdamW``; each loads the other's.
    """

    kind: ClassVar[int] = ADAM

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        capturable: bool = False,
        decoupled: bool = False,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options["amsgrad"] = amsgrad
        options |= {"maximize": maximize, "capturable": capturable, "decoupled_weight_decay": decoupled}
        options |= {"master_weights": master_weights, "state_dtype": state_dtype}
        super().__init__(params, options, max_grad_norm)

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Two moments, and with amsgrad the largest second one."""
        moments = ("exp_avg", "exp_avg_sq")
        return (*moments, "max_exp_avg_sq") if group["amsgrad"] else moments

    def numbers(self, group: dict[str, Any]) -> tuple[float, float, float, float, float]:
        """No more than the usual."""
        beta1, beta2 = group["betas"]
        return float(beta1), float(beta2), float(group["eps"]), float(group["weight_decay"]), 0.0

    def flags(self, group: dict[str, Any]) -> int:
        """Whether to climb, and where the decay goes."""
        return MAXIMIZE * bool(group["maximize"]) + DECOUPLED * bool(group["decoupled_weight_decay"])


class FusedAdamW(FusedAdam):
    """``FusedAdam`` with the decay apart from the gradient, and the default of ``torch.optim.AdamW`` for it."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, decoupled=True, **options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state of Adam, or one from before torch had this entry
            group["decoupled_weight_decay"] = True
