"""``FusedAdam`` with the arguments and defaults that Colossal-AI, apex and DeepSpeed share: it is AdamW by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precast.optim import adam

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim.optimizer import ParamsT

__all__ = ["FusedAdam"]


class FusedAdam(adam.FusedAdam):
    """:class:`precast.optim.FusedAdam`, called as in the older packages.

    ``precast.optim.FusedAdam`` follows ``torch.optim.Adam`` instead: its weight decay is added to the gradient.

    Args:
        params: parameters on one GPU, or dicts of parameter groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more; a tensor on the GPU is read at each replay of a CUDA graph.
        bias_correction: divide the moments by ``1 - beta**step``, as the paper does.
        betas: decay rates of the averages of the gradient and of its square; from 0 up to but not including 1.
        eps: added to the denominator; 0 or more.
        adam_w_mode: decay the parameter itself (AdamW) instead of adding the decay to the gradient (Adam).
        weight_decay: 0 or more.
        amsgrad: use the largest average of squares so far, which apex and DeepSpeed refuse.
        set_grad_none: ``zero_grad`` drops the gradients instead of filling them with zeros.
        capturable: ignored, because every step can be captured.
        master_weights: keep float32 masters of float16 and bfloat16 parameters in the state, rounded into them.
        adamw_mode: the name that Colossal-AI has for ``adam_w_mode``.

    Raises:
        ValueError: an option is out of range.

    Example::

        optimizer = precast.optim.compat.FusedAdam(model.parameters(), lr=1e-3, weight_decay=0.01)  # AdamW
        optimizer.step()  # after backward(), as with torch.optim
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        *,
        adamw_mode: bool | None = None,
    ) -> None:
        self.set_grad_none = set_grad_none
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            bias_correction=bias_correction,
            capturable=capturable,
            decoupled=bool(adam_w_mode if adamw_mode is None else adamw_mode),
            master_weights=master_weights,
        )

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop all gradients, or fill them with zeros; None: as ``set_grad_none`` says."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "set_grad_none": self.set_grad_none}
