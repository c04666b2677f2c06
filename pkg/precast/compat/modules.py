"""The classes and functions of the modules that this package replaces, by their names, on top of precast's ops.

Each group takes a function that finds an op by name: either the kernel (``torch.ops.precast``) or its reference in
plain torch. torch and the ops are imported inside functions, so that listing the loaders imports neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from precast._dispatch import namespace

if TYPE_CHECKING:
    from torch import Tensor

Find: TypeAlias = Callable[[str], Callable[..., Any]]
Members: TypeAlias = Mapping[str, Any]

_CAST_ONCE = 0  # the ops' casting mode with a single rounding at the end
_MASKED = -10000.0  # the older kernel's value for a masked score; a fully masked row becomes uniform


def kernel(name: str) -> Callable[..., Any]:
    """An op of precast, whose kernels are loaded at the first call."""
    from precast import ops

    ops.define(name)
    return namespace.overload(name)


def reference(name: str) -> Callable[..., Any]:
    """The same op in plain torch. It checks all of its arguments first, as a kernel does."""
    from precast import ops
    from precast.ops import _folders
    from precast.ops._written import checked

    ops.define(name)
    return checked(namespace.overload(name), _folders.reference(name))


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
        self._adam = self._op()

    def _op(self) -> Callable[..., Any]:
        return kernel("adam_")

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


class TorchAdamOptimizer(CPUAdamOptimizer):
    """The same in plain torch."""

    def _op(self) -> Callable[..., Any]:
        return reference("adam_")


def adam(find: Find) -> Members:
    """``CPUAdamOptimizer``."""
    return {"CPUAdamOptimizer": CPUAdamOptimizer if find is kernel else TorchAdamOptimizer}


def norms(find: Find) -> Members:
    """``rms_layernorm`` and ``fused_add_rms_layernorm``, which write into their arguments."""

    def rms_layernorm(out: Tensor, input: Tensor, weight: Tensor, eps: float) -> None:  # noqa: A002 - a name to keep
        """Write the RMS norm of ``input`` over its last dimension, times ``weight``, into ``out``."""
        import torch

        with torch.no_grad():
            out.copy_(find("rms_norm")(input, weight, eps, _CAST_ONCE))

    def fused_add_rms_layernorm(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:  # noqa: A002
        """``residual += input``, then ``input`` becomes the RMS norm of ``residual``; both in place."""
        import torch

        with torch.no_grad():
            find("fused_add_rms_norm_")(input, residual, weight, eps, _CAST_ONCE)

    return {"rms_layernorm": rms_layernorm, "fused_add_rms_layernorm": fused_add_rms_layernorm}


def masked_softmax(find: Find) -> Members:
    """``forward`` and ``backward`` of the softmax with a mask, and ``get_batch_per_block``."""

    def forward(input: Tensor, mask: Tensor, scale: float) -> Tensor:  # noqa: A002 - a name to keep
        """``softmax(scale * input)``; masked scores (1 in ``mask``, for one or all heads) count as -10000."""
        import torch

        mask = mask if mask.dtype in (torch.bool, torch.uint8) else mask.bool()
        with torch.no_grad():
            y: Tensor = find("scaled_masked_softmax")(input, mask, scale, _MASKED, True)
        return y

    def get_batch_per_block(query_seq_len: int, key_seq_len: int, batches: int, attn_heads: int) -> int:
        """The number that the rows must be divisible by: 1, because the kernels accept every shape."""
        return 1

    return {"forward": forward, "backward": _softmax_backward(find, False), "get_batch_per_block": get_batch_per_block}


def causal_softmax(find: Find) -> Members:
    """``forward`` and ``backward`` of the causal softmax."""

    def forward(input: Tensor, scale: float) -> Tensor:  # noqa: A002 - a name to keep
        """``softmax(scale * input)`` up to the diagonal of ``(..., s, s)``, zero to the right of it."""
        import torch

        with torch.no_grad():
            y: Tensor = find("scaled_upper_triang_masked_softmax")(input, scale)
        return y

    return {"forward": forward, "backward": _softmax_backward(find, True)}


def _softmax_backward(find: Find, causal: bool) -> Callable[..., Tensor]:
    def backward(output_grads: Tensor, softmax_results: Tensor, scale: float) -> Tensor:
        """The gradient for ``input``, from the result of ``forward``."""
        import torch

        with torch.no_grad():
            grad: Tensor = find("scaled_softmax_backward")(output_grads, softmax_results, scale, causal)
        return grad

    return backward
