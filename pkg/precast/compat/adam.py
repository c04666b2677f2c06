"""Adam of the older package, for one parameter at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.compat.members import kernel

__all__ = ["CPUAdamOptimizer"]


class CPUAdamOptimizer:
    """Adam for one parameter in CPU memory per call, with the names of ``colossalai.kernel``.

    ``step`` uses only its arguments. The values of the constructor are kept for callers that read them.

    Args:
        lr: learning rate.
        beta1: decay rate of the average of the gradients.
        beta2: decay rate of the average of their squares.
        eps: added to the denominator.
        weight_decay: decay of the parameters.
        adamw_mode: decay the parameter itself (AdamW) instead of adding the decay to the gradient (Adam).

    Raises:
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        p, grad, mean, square = (torch.ones(8) for _ in range(4))
        adam = precast.optim.CPUAdamOptimizer(lr=1e-3)
        adam.step(1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, p, grad, mean, square)
    """

    def __init__(
        self,
        lr: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adamw_mode: bool = True,
    ) -> None:
        self.lr = lr
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.weight_decay = weight_decay
        self.adamw_mode = adamw_mode
        self._adam = kernel("adam_")

    @torch.no_grad()
    def step(
        self,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        params: Tensor,
        grads: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        loss_scale: float = -1.0,
    ) -> None:
        """Update ``params``, ``exp_avg`` and ``exp_avg_sq`` in place; a positive ``loss_scale`` divides the gradients.

        ``step`` counts from 1. The dtypes may be any mix of fp32, bf16 and fp16 that ``torch.ops.precast.adam_`` takes.
        """
        if step < 1:
            raise ValueError(f"step is {step}; needed 1 or more")
        correction1 = 1.0 - beta1**step if bias_correction else 1.0
        correction2 = 1.0 - beta2**step if bias_correction else 1.0
        grad_scale = 1.0 / loss_scale if loss_scale > 0 else 1.0
        self._adam(
            *([params], [grads], [exp_avg], [exp_avg_sq], []),
            *(lr, beta1, beta2, eps, weight_decay, correction1, correction2, grad_scale, self.adamw_mode, False),
        )
