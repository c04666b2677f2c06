"""The classes and functions of the modules we stand in for, by their names, over this package's ops.

They speak to ``torch.ops.precast`` alone: this room is below ``precast.ops`` and must not import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from precast._load import namespace

if TYPE_CHECKING:
    from torch import Tensor

_CAST_ONCE = 0  # the ops' casting code for one rounding, at the end


class CPUAdamOptimizer:
    """One Adam step at a time, for one parameter; the hyper-parameters given to ``step`` are the ones used.

    Those of the constructor are kept for callers that read them; ``adamw_mode`` chooses decoupled weight decay.
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
        self._adam = namespace.overload("adam_")

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
        """Updates ``params``, ``exp_avg`` and ``exp_avg_sq`` in place; a positive ``loss_scale`` divides the gradients.

        ``step`` counts from 1. Any mix of fp32, bf16 and fp16 that ``torch.ops.precast.adam_`` takes.
        """
        import torch

        if step < 1:
            raise ValueError(f"step is {step}; the first step is 1")
        correction1 = 1.0 - beta1**step if bias_correction else 1.0
        correction2 = 1.0 - beta2**step if bias_correction else 1.0
        grad_scale = 1.0 / loss_scale if loss_scale > 0 else 1.0
        with torch.no_grad():
            self._adam(
                [params],
                [grads],
                [exp_avg],
                [exp_avg_sq],
                [],
                lr,
                beta1,
                beta2,
                eps,
                weight_decay,
                correction1,
                correction2,
                grad_scale,
                self.adamw_mode,
                False,
            )


def rms_layernorm(out: Tensor, input: Tensor, weight: Tensor, eps: float) -> None:  # noqa: A002 - a name to keep
    """Writes the RMS norm of ``input`` over its last dimension, times ``weight``, into ``out``."""
    import torch

    with torch.no_grad():
        out.copy_(namespace.overload("rms_norm")(input, weight, eps, _CAST_ONCE))


def fused_add_rms_layernorm(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:  # noqa: A002
    """``residual += input``, then ``input`` becomes the RMS norm of ``residual``; both in place."""
    import torch

    with torch.no_grad():
        namespace.overload("fused_add_rms_norm_")(input, residual, weight, eps, _CAST_ONCE)
