"""The ancestor's TorchScript helpers: bias + GELU, and bias + dropout + residual, fused by torch where possible.

They are scripted at their first call, because torch has begun to retire TorchScript. ``torch.compile`` compiles the
same formulas without scripting.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "GeLUFunction",
    "bias_dropout_add_fused_inference",
    "bias_dropout_add_fused_train",
    "bias_gelu_impl",
    "set_jit_fusion_options",
    "warmup_jit_fusion",
]

_WARM_CALLS = 3  # TorchScript profiles the first two and optimises the third


def bias_gelu_impl(input: Tensor, bias: Tensor) -> Tensor:  # noqa: A002 - a name to keep
    """``gelu(input + bias)`` with the tanh approximation; ``bias`` is broadcast."""
    return _bias_gelu_recorded(input, bias)


def bias_dropout_add_fused_train(x: Tensor, bias: Tensor, residual: Tensor, prob: float) -> Tensor:
    """``residual + dropout(x + bias, prob)``."""
    return _scripted(_train)(x, bias, residual, prob)


def bias_dropout_add_fused_inference(x: Tensor, bias: Tensor, residual: Tensor, prob: float) -> Tensor:
    """``residual + x + bias``. Nothing is dropped; ``prob`` exists so that callers can swap the two functions."""
    return _scripted(_inference)(x, bias, residual, prob)


class GeLUFunction(torch.autograd.Function):
    """``apply(input, bias)``. The gradient is recomputed from the two arguments in one pass."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, bias: Tensor) -> Tensor:  # noqa: A002
        """The value. Saves the two arguments."""
        ctx.save_for_backward(input, bias)
        return _scripted(_bias_gelu)(input, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of both arguments, summed over broadcast dimensions."""
        input, bias = ctx.saved_tensors  # noqa: A001
        grad = _scripted(_bias_gelu_backward)(grad_output, input, bias)
        return grad.sum_to_size(input.shape), grad.sum_to_size(bias.shape)


_bias_gelu_recorded: Callable[[Tensor, Tensor], Tensor] = GeLUFunction.apply


def set_jit_fusion_options() -> None:
    """Enables TorchScript's profiling and fusion in this process. Repeated calls do nothing."""
    torch._C._jit_set_profiling_executor(True)
    torch._C._jit_set_profiling_mode(True)
    torch._C._debug_set_autodiff_subgraph_inlining(False)


def warmup_jit_fusion(
    batch_size: int,
    hidden_size: int,
    seq_length: int = 512,
    vocab_size: int = 32768,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Compiles the helpers for the shapes of a transformer's MLP on the current device, before the first step.

    ``vocab_size`` is ignored; it exists for callers that pass it.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make = functools.partial(torch.rand, dtype=dtype, device=device)
    wide, narrow = 4 * hidden_size, hidden_size
    for needs_grad in (False, True):
        for _ in range(_WARM_CALLS):
            x = make(seq_length, batch_size, wide).requires_grad_(needs_grad)
            bias_gelu_impl(x, make(wide).requires_grad_())
            z = make(seq_length, batch_size, narrow).requires_grad_(needs_grad)
            bias, residual = make(narrow).requires_grad_(), make(seq_length, batch_size, narrow).requires_grad_()
            bias_dropout_add_fused_train(z, bias, residual, 0.1)


def _scripted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return function if torch.compiler.is_compiling() else _script(function)


@functools.cache
def _script(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch warns about every use of TorchScript
        scripted: Callable[..., Tensor] = torch.jit.script(function)
    return scripted


def _bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x + bias, approximate="tanh")


def _bias_gelu_backward(grad: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    z = x + bias
    cubic = 0.044715 * z * z
    t = torch.tanh(0.7978845608028654 * z * (1.0 + cubic))  # sqrt(2 / pi)
    return grad * (0.5 * (1.0 + t) + 0.5 * z * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3.0 * cubic))


def _train(x: Tensor, bias: Tensor, residual: Tensor, prob: float) -> Tensor:
    return residual + torch.nn.functional.dropout(x + bias, p=prob, training=True)


def _inference(x: Tensor, bias: Tensor, residual: Tensor, prob: float) -> Tensor:
    return residual + (x + bias)
