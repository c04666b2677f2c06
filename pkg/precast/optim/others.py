"""SGD, Adagrad and Lion: the rules, and the optimizers for each device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from precast.ops import _updates
from precast.optim._planned import options_of
from precast.optim._rules import (
    BETAS,
    DECAY,
    EPS,
    FIRST,
    MAXIMIZE,
    Kernel,
    Rule,
    State,
    always,
    check_betas,
    on_both,
    option,
    zero,
)
from precast.optim.cpu_base import CPUOptimizer
from precast.optim.fused_base import FusedOptimizer

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["CPUSGD", "CPUAdagrad", "CPULion", "FusedAdagrad", "FusedLion", "FusedSGD"]

# ---- SGD ----


def _check_nesterov(options: Mapping[str, Any]) -> None:
    if options["nesterov"] and (options["momentum"] <= 0 or options["dampening"] != 0):
        found = f"momentum {options['momentum']} and dampening {options['dampening']}"
        raise ValueError(f"nesterov with {found}; needed a momentum above 0 and no dampening")


_MOMENTUM = State("momentum_buffer", when="momentum")
SGD = Rule(
    torch.optim.SGD,
    on_both(
        Kernel(
            _updates.SGD,
            lists=(_MOMENTUM, None, None),
            numbers=(option("dampening"), zero, zero, DECAY, option("momentum")),
            at_first=(zero, zero, zero, DECAY, option("momentum")),  # a new buffer is the gradient itself
            flags=(MAXIMIZE, (option("nesterov"), _updates.NESTEROV)),
            counts=False,
        )
    ),
    ("lr", "weight_decay", "momentum"),
    _check_nesterov,
)


class CPUSGD(CPUOptimizer):
    """``torch.optim.SGD`` for parameters in CPU memory, one pass over memory for each step.

    ``state_dict`` has the entries of torch, so each class loads the state of the other.

    Args:
        params: parameters in CPU memory, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more.
        momentum: 0 or more.
        dampening: the gradient enters the momentum with the factor ``1 - dampening``.
        weight_decay: 0 or more, added to the gradient.
        nesterov: use Nesterov momentum; needs a momentum above 0 and no dampening.
        maximize: maximize the objective instead of minimizing it.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.CPUSGD(model.parameters(), lr=1e-3, momentum=0.9)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = SGD

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
        state_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        super().__init__(params, options_of(locals()))


class FusedSGD(FusedOptimizer):
    """``torch.optim.SGD`` on the GPU, all parameters in one launch. Each class loads the state of the other.

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
        max_grad_norm: clip by the 2-norm of all gradients, in an additional pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedSGD(model.parameters(), lr=1e-3, momentum=0.9)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = SGD

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
        super().__init__(params, options_of(locals()))

    def _state_as_torchs(self, state: Any) -> Any:
        """Torch counts no steps: a buffer means that there was one."""
        result = super()._state_as_torchs(state)
        if isinstance(result, dict) and float(result.pop("step", 1.0)) == 0:
            result.pop("momentum_buffer", None)
        return result or None if isinstance(result, dict) else result


# ---- Adagrad (Duchi, Hazan and Singer, 2011) ----

_SUM = State("sum", initial="initial_accumulator_value")
ADAGRAD = Rule(
    torch.optim.Adagrad,
    on_both(
        Kernel(
            _updates.ADAGRAD,
            lists=(_SUM, None, None),
            numbers=(zero, zero, EPS, DECAY, option("lr_decay")),
            flags=(MAXIMIZE,),
            sparse=True,
        )
    ),
    ("lr", "weight_decay", "lr_decay", "initial_accumulator_value", "eps"),
)


class CPUAdagrad(CPUOptimizer):
    """``torch.optim.Adagrad`` for parameters in CPU memory, one pass over memory for each step.

    ``state_dict`` has the entries of torch, so each class loads the state of the other. A sparse gradient, as of
    ``torch.nn.Embedding(sparse=True)``, updates only the rows that it has, and needs ``weight_decay=0``.

    Args:
        params: parameters in CPU memory, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more.
        lr_decay: the learning rate is divided by ``1 + steps * lr_decay``; 0 or more.
        weight_decay: 0 or more, added to the gradient.
        initial_accumulator_value: initial value of the sums of squares; 0 or more.
        eps: added to the denominator; 0 or more.
        maximize: maximize the objective instead of minimizing it.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.CPUAdagrad(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = ADAGRAD

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
        state_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        super().__init__(params, options_of(locals()))
        for group in self.param_groups:  # in the constructor already, as torch does
            for param in group["params"]:
                self.state[param] = self._new_state(group, param, {})


class FusedAdagrad(FusedOptimizer):
    """``torch.optim.Adagrad`` on the GPU, all parameters in one launch. Each class loads the state of the other.

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
        max_grad_norm: clip by the 2-norm of all gradients, in an additional pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedAdagrad(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = ADAGRAD

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
        super().__init__(params, options_of(locals()))


# ---- Lion (Chen and others, 2023) ----

LION = Rule(
    None,
    on_both(
        Kernel(
            _updates.LION,
            lists=(FIRST, None, None),
            numbers=(*BETAS, zero, DECAY, zero),
            flags=(MAXIMIZE, (always, _updates.DECOUPLED)),
            counts=False,
        )
    ),
    check=check_betas,
)


class CPULion(CPUOptimizer):
    """Lion (Chen and others, 2023) for parameters in CPU memory: the step is the sign of a momentum.

    A NaN gradient makes its parameter NaN.

    Args:
        params: parameters in CPU memory, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more.
        betas: weights of the momentum in the step and in its own update; from 0 up to but not including 1.
        weight_decay: 0 or more; decays the parameter itself, not through the gradient.
        maximize: maximize the objective instead of minimizing it.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.CPULion(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = LION

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        super().__init__(params, options_of(locals()))


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
        max_grad_norm: clip by the 2-norm of all gradients, in an additional pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedLion(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = LION

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
        super().__init__(params, options_of(locals()))
