"""Adam, AdamW and LAMB: the rules, and the optimizers for each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

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
    SECOND,
    Kernel,
    Rule,
    State,
    always,
    check_betas,
    lacks,
    option,
    zero,
)
from precast.optim.cpu_base import CPUOptimizer
from precast.optim.fused_base import FusedOptimizer

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["CPUAdam", "FusedAdam", "FusedAdamW", "FusedLAMB"]

# ---- Adam (Kingma and Ba, 2014) and AdamW (Loshchilov and Hutter, 2017) ----

_UNCORRECTED = (lacks("bias_correction"), _updates.UNCORRECTED)
_GREATEST = State("max_exp_avg_sq", when="amsgrad")


def _kernel(decoupled: str) -> Kernel:
    """The kernel on each device; ``decoupled``: the option for AdamW."""
    return Kernel(
        _updates.ADAM,
        lists=(FIRST, SECOND, _GREATEST),
        numbers=(*BETAS, EPS, DECAY, zero),
        flags=(MAXIMIZE, (option(decoupled), _updates.DECOUPLED), _UNCORRECTED),
    )


_ADAM_ON = {"cpu": _kernel("decoupled"), "gpu": _kernel("decoupled_weight_decay")}
ADAM = Rule(torch.optim.Adam, _ADAM_ON, ("lr", "weight_decay", "eps"), check_betas)
ADAMW = Rule(torch.optim.AdamW, _ADAM_ON, ("lr", "weight_decay", "eps"), check_betas)


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

    rule = ADAMW

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
        super().__init__(params, options_of(locals()))

    def _as_torchs(self, group: dict[str, Any]) -> dict[str, Any]:
        decoupled = group.pop("decoupled")
        return super()._as_torchs({**group, "decoupled_weight_decay": decoupled})

    def __setstate__(self, state: dict[str, Any]) -> None:
        for group in state["param_groups"]:
            # torch distinguishes AdamW from Adam by the class or by decoupled_weight_decay.
            if "decoupled_weight_decay" in group:
                group.setdefault("decoupled", group["decoupled_weight_decay"])
        super().__setstate__(state)


class FusedAdam(FusedOptimizer):
    """``torch.optim.Adam`` on the GPU, all parameters in one launch; ``decoupled=True``: AdamW.

    The ``FusedAdam`` of Colossal-AI, apex and DeepSpeed is AdamW by default: ``precast.optim.compat.FusedAdam``. The
    arithmetic is in float32 for every dtype. Every step can be captured in a CUDA graph. ``GradScaler`` needs no extra
    pass and no synchronization: the step unscales the gradients in place, as in torch. A step whose gradients
    overflowed is skipped and not counted; the gradients then stay scaled. ``state_dict`` has the entries of
    ``torch.optim.Adam`` and ``AdamW``, so each class loads the state of the others.

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
        max_grad_norm: clip by the 2-norm of all gradients, in an additional pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedAdam(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule: ClassVar[Rule] = ADAM

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
        options = options_of(locals())
        options["decoupled_weight_decay"] = options.pop("decoupled")
        super().__init__(params, options)


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
        max_grad_norm: clip by the 2-norm of all gradients, in an additional pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedAdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = ADAMW

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
        FusedOptimizer.__init__(self, params, options_of(locals()) | {"decoupled_weight_decay": True})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state of Adam, or of a torch without this entry
            group["decoupled_weight_decay"] = True


# ---- LAMB (You and others, 2020) ----

_DIRECTION = State("direction", saved=False)
LAMB = Rule(
    None,
    {
        "gpu": Kernel(
            _updates.LAMB,
            lists=(FIRST, SECOND, _DIRECTION),
            numbers=(*BETAS, EPS, DECAY, zero),
            flags=(
                MAXIMIZE,
                (always, _updates.DECOUPLED),  # the decay is part of the step
                (option("always_adapt"), _updates.ALWAYS_ADAPT),
                _UNCORRECTED,
            ),
            apply=_updates.LAMB_APPLY,
        ),
    },
    ("lr", "weight_decay", "eps"),
    check_betas,
)


class FusedLAMB(FusedOptimizer):
    """LAMB (You and others, 2020) on the GPU, all parameters in two launches.

    LAMB is AdamW with the step of each parameter scaled to the norm of the parameter. As in NVIDIA's version, gradients
    are clipped first, and a parameter without weight decay takes the unscaled step. During a step, the direction needs
    four bytes per element of temporary memory.

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
        max_grad_norm: clip by the 2-norm of all gradients, in an additional pass that only reads; None: no clipping.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.FusedLAMB(model.parameters(), lr=1e-3)
        optimizer.step()  # after backward(), as with torch.optim
    """

    rule = LAMB

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
        super().__init__(params, options_of(locals()))
