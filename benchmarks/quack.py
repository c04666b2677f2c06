"""QuACK (kernels in the CuTe DSL) as a peer if it is installed, under the names of the benchmarks' ops."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

EPS = 1e-6
NAME = "QuACK"
ABSENT = "no peer: quack-kernels is not installed"
NO_SUCH_OP = "no peer: it has no such op"
NO_GRADIENT = "no peer: its layer_norm has no gradient for autograd"


def installed() -> str | None:
    """Its version, or None."""
    return version("quack-kernels") if importlib.util.find_spec("quack") is not None else None


def functions() -> dict[str, Callable[..., Any]]:
    """The functions by op. Its layer_norm takes float32 weights, which its backward does not differentiate."""
    quack = importlib.import_module("quack")
    norms = importlib.import_module("quack.rmsnorm")

    def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return quack.rmsnorm(x, weight, eps=EPS)

    def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        return quack.rmsnorm(x, weight, residual=residual, eps=EPS, prenorm=True)

    def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return norms.layernorm_fwd(x, weight.float(), bias.float(), 1e-5)

    return {
        "rms_norm": rms_norm,
        "fused_add_rms_norm": fused_add_rms_norm,
        "layer_norm": layer_norm,
        "scaled_softmax": quack.softmax,
    }
