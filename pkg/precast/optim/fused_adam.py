"""Adam and AdamW on the GPU, all parameters in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from precast.optim import _rules
from precast.optim.fused_base import FusedOptimizer

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class FusedAdam(FusedOptimizer):
    """``torch.optim.Adam`` on the GPU, all parameters in one launch; ``decoupled=True``: AdamW.

    Colossal-AI, apex and DeepSpeed have AdamW as the default of this name: ``precast.optim.compat.FusedAdam``.
    The arithmetic is in float32 for every dtype. Every step can be captured in a CUDA graph. ``GradScaler``
    needs no extra pass and no synchronization: the step unscales the gradients in place, as in torch. A step that
    overflowed is skipped, not counted, and leaves them. ``state_dict`` has the entries of ``torch.optim.Adam`` and
    ``AdamW``, so each class loads the state of the others.

    Args:
        params: parameters on one GPU, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more; a tensor on the GPU is read at each replay of a CUDA graph.
        betas: decay rates of the averages of the gradient and of its square; from 0 up to but not including 1.
        eps: added to the denominator; 0 or more.
        weight_decay: 0 or more.
        amsgrad: use the largest average of squares so far.
        maximize: maximize the objective instead of minimizing it.
        bias_correction: divide the moments by ``1 - beta**step``, as the paper does.
        capturable: ignored, because every step can be captured.
        decoupled: decay the parameter itself (AdamW) instead of adding the decay to the gradient (Adam).
        master_weights: keep float32 masters of float16 and bfloat16 parameters in the state, rounded into them.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.
        max_grad_norm: clip by the 2-norm of all gradients, in one more pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedAdam(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule: ClassVar[_rules.Rule] = _rules.ADAM

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        bias_correction: bool = True,
        capturable: bool = False,
        decoupled: bool = False,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options["amsgrad"] = amsgrad
        options |= {"maximize": maximize, "capturable": capturable, "decoupled_weight_decay": decoupled}
        options |= {"bias_correction": bias_correction, "master_weights": master_weights, "state_dtype": state_dtype}
        super().__init__(params, options, max_grad_norm)


class FusedAdamW(FusedAdam):
    """``torch.optim.AdamW`` on the GPU, all parameters in one launch; otherwise the same as :class:`FusedAdam`.

    Args:
        params: parameters on one GPU, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more; a tensor on the GPU is read at each replay of a CUDA graph.
        betas: decay rates of the averages of the gradient and of its square; from 0 up to but not including 1.
        eps: added to the denominator; 0 or more.
        weight_decay: 0 or more; decays the parameter itself, not through the gradient.
        amsgrad: use the largest average of squares so far.
        maximize: maximize the objective instead of minimizing it.
        bias_correction: divide the moments by ``1 - beta**step``, as the paper does.
        capturable: ignored, because every step can be captured.
        master_weights: keep float32 masters of float16 and bfloat16 parameters in the state, rounded into them.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.
        max_grad_norm: clip by the 2-norm of all gradients, in one more pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedAdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = _rules.ADAMW

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        bias_correction: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            decoupled=True,
            maximize=maximize,
            bias_correction=bias_correction,
            capturable=capturable,
            master_weights=master_weights,
            state_dtype=state_dtype,
            max_grad_norm=max_grad_norm,
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state of Adam, or of a torch without this entry
            group["decoupled_weight_decay"] = True
