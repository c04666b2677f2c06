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

    known = {
        "rms_norm": rms_norm,
        "fused_add_rms_norm": fused_add_rms_norm,
        "layer_norm": layer_norm,
        "scaled_softmax": quack.softmax,
    }
    return {op: _explained(function) for op, function in known.items()}


def _explained(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose compiler's own errors become a RuntimeError: some widths do not compile."""

    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            if not type(error).__module__.startswith("cutlass"):
                raise
            raise RuntimeError(f"its compiler says: {error}") from error

    return call
