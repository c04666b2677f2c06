"""Liger-Kernel as a peer if it is installed: its kernels under the names of the benchmarks' ops."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

EPS = 1e-6
NAME = "Liger-Kernel"
ABSENT = "no peer: liger-kernel is not installed"
NO_SUCH_OP = "no peer: it has no such op"


def installed() -> str | None:
    """Its version, or None."""
    return version("liger-kernel") if importlib.util.find_spec("liger_kernel") is not None else None


def functions() -> dict[str, Callable[..., Any]]:
    """The functions by op. Its gated activations take two tensors, as from two linear layers, so they get contiguous
    halves.

    Its backward of these overwrites its inputs, so it cannot be timed repeatedly on the same numbers.
    """
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    from liger_kernel.ops.geglu import LigerGELUMulFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "none", False)

    def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        return LigerFusedAddRMSNormFunction.apply(x, residual, weight, EPS, 0.0, "none", False)

    def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return LigerLayerNormFunction.apply(x, weight, bias, 1e-5)

    return {
        "rms_norm": rms_norm,
        "fused_add_rms_norm": fused_add_rms_norm,
        "layer_norm": layer_norm,
        "silu_and_mul": LigerSiLUMulFunction.apply,
        "gelu_tanh_and_mul": LigerGELUMulFunction.apply,
    }


def loss(op: str) -> dict[str, Callable[..., Any]]:
    """Its loss by its name, which computes the gradients in the forward pass; nothing if it is not installed."""
    if installed() is None:
        return {}
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    if op == "cross_entropy":
        return {NAME: lambda logits, target: LigerCrossEntropyFunction.apply(logits, target, None)[0]}
    return {NAME: lambda x, weight, target: LigerFusedLinearCrossEntropyFunction.apply(x, weight, target)[0]}
