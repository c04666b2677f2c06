"""SGD, Adagrad, Lion and LAMB on the GPU, all parameters in one launch (LAMB: two)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from precast.optim import _rules
from precast.optim.fused_base import FusedOptimizer

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class FusedSGD(FusedOptimizer):
    """``torch.optim.SGD`` on the GPU, all parameters in one launch. Each loads the other's state.

    Args:
        params: parameters on one GPU, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more; a tensor on the GPU is read at each replay of a CUDA graph.
        momentum: 0 or more.
        dampening: the gradient enters the momentum with the factor ``1 - dampening``.
        weight_decay: 0 or more, added to the gradient.
        nesterov: use Nesterov momentum; needs a momentum above 0 and no dampening.
        maximize: maximize the objective instead of minimizing it.
        master_weights: keep float32 masters of float16 and bfloat16 parameters in the state, rounded into them.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.
        max_grad_norm: clip by the 2-norm of all gradients, in one more pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedSGD(model.parameters(), lr=1e-3, momentum=0.9)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = _rules.SGD

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        options |= {"nesterov": nesterov, "maximize": maximize, "master_weights": master_weights}
        super().__init__(params, {**options, "state_dtype": state_dtype}, max_grad_norm)

    def _state_as_torchs(self, state: Any) -> Any:
        """Torch counts no steps: a buffer means that there was one."""
        result = super()._state_as_torchs(state)
        if isinstance(result, dict) and float(result.pop("step", 1.0)) == 0:
            result.pop("momentum_buffer", None)
        return result or None if isinstance(result, dict) else result


class FusedAdagrad(FusedOptimizer):
    """``torch.optim.Adagrad`` on the GPU, all parameters in one launch. Each loads the other's state.

    Args:
        params: parameters on one GPU, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more; a tensor on the GPU is read at each replay of a CUDA graph.
        lr_decay: the learning rate is divided by ``1 + steps * lr_decay``; 0 or more.
        weight_decay: 0 or more, added to the gradient.
        initial_accumulator_value: initial value of the sums of squares; 0 or more.
        eps: added to the denominator; 0 or more.
        maximize: maximize the objective instead of minimizing it.
        master_weights: keep float32 masters of float16 and bfloat16 parameters in the state, rounded into them.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.
        max_grad_norm: clip by the 2-norm of all gradients, in one more pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedAdagrad(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = _rules.ADAGRAD

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        options |= {"maximize": maximize}
        options |= {"initial_accumulator_value": initial_accumulator_value, "master_weights": master_weights}
        super().__init__(params, {**options, "state_dtype": state_dtype}, max_grad_norm)


class FusedLion(FusedOptimizer):
    """Lion (Chen and others, 2023) on the GPU, all parameters in one launch: the step is the sign of a momentum.

    Args:
        params: parameters on one GPU, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more; a tensor on the GPU is read at each replay of a CUDA graph.
        betas: weights of the momentum in the step and in its own update; from 0 up to but not including 1.
        weight_decay: 0 or more; decays the parameter itself, not through the gradient.
        maximize: maximize the objective instead of minimizing it.
        master_weights: keep float32 masters of float16 and bfloat16 parameters in the state, rounded into them.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.
        max_grad_norm: clip by the 2-norm of all gradients, in one more pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedLion(model.parameters(), lr=1e-3)
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
        master_weights: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        options |= {"master_weights": master_weights, "state_dtype": state_dtype}
        super().__init__(params, options, max_grad_norm)


class FusedLAMB(FusedOptimizer):
    """LAMB (You and others, 2020) on the GPU, all parameters in two launches.

    It is AdamW, but each parameter's step is scaled to the norm of the parameter. As in NVIDIA's version, gradients are
    clipped first, and a parameter without weight decay takes the unscaled step. During a step, the direction needs four
    bytes per element of temporary memory.

    Args:
        params: parameters on one GPU, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more; a tensor on the GPU is read at each replay of a CUDA graph.
        betas: decay rates of the averages of the gradient and of its square; from 0 up to but not including 1.
        eps: added to the denominator; 0 or more.
        weight_decay: 0 or more.
        always_adapt: also scale the steps of parameters without weight decay.
        bias_correction: divide the moments by ``1 - beta**step``, as the paper does.
        maximize: maximize the objective instead of minimizing it.
        master_weights: keep float32 masters of float16 and bfloat16 parameters in the state, rounded into them.
        max_grad_norm: clip by the 2-norm of all gradients, in one more pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedLAMB(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = _rules.LAMB

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        always_adapt: bool = False,
        bias_correction: bool = True,
        maximize: bool = False,
        master_weights: bool = False,
        max_grad_norm: float | None = 1.0,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options |= {"maximize": maximize, "always_adapt": always_adapt, "master_weights": master_weights}
        options["bias_correction"] = bias_correction
        super().__init__(params, options, max_grad_norm)
