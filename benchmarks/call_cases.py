"""Calls of small ops, with torch's own functions for the same result: what a call costs on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Call = Callable[[], object]
SHAPE = (4, 64)  # too small to cost anything itself


class Case(NamedTuple):
    """One op: ours and torch's without and with an input that requires grad."""

    ours: Call
    theirs: Call
    ours_recorded: Call
    theirs_recorded: Call


def cases(device: str) -> dict[str, Case]:
    """The ops that models call most, on float32 tensors of 4 x 64."""
    import torch
    from torch.nn import functional

    from precast.ops import fused_add_rms_norm, rotary_embedding, scaled_softmax, silu_and_mul
    from precast.ops.norm import layer_norm, rms_norm

    x, other = (torch.randn(SHAPE, device=device) for _ in range(2))
    ones, zeros = torch.ones(64, device=device), torch.zeros(64, device=device)
    cos, sin = (torch.randn(4, 16, device=device) for _ in range(2))
    wide_cos, wide_sin = (torch.cat([table, table], -1)[:, None] for table in (cos, sin))
    heads = torch.randn(4, 2, 32, device=device)

    def pair(call: Callable[..., object], *tensors: Tensor) -> tuple[Call, Call]:
        tracked = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
        return lambda: call(*tensors), lambda: call(*tracked)

    def rotate(q: Tensor) -> Tensor:
        first, second = q.chunk(2, -1)
        return q * wide_cos + torch.cat([-second, first], -1) * wide_sin

    def case(ours: Callable[..., object], theirs: Callable[..., object], *tensors: Tensor) -> Case:
        mine, recorded = pair(ours, *tensors)
        torchs, torchs_recorded = pair(theirs, *tensors)
        return Case(mine, torchs, recorded, torchs_recorded)

    return {
        "rms_norm": case(lambda w: rms_norm(x, w), lambda w: functional.rms_norm(x, (64,), w, 1e-6), ones),
        "fused_add_rms_norm": case(
            lambda w: fused_add_rms_norm(x, other, w), lambda w: functional.rms_norm(x + other, (64,), w, 1e-6), ones
        ),
        "layer_norm": case(
            lambda w, b: layer_norm(x, w, b), lambda w, b: functional.layer_norm(x, (64,), w, b), ones, zeros
        ),
        "scaled_softmax": case(lambda s: scaled_softmax(s, 0.5), lambda s: torch.softmax(s * 0.5, -1), x),
        "silu_and_mul": case(silu_and_mul, lambda gate, up: functional.silu(gate) * up, x, other),
        "rotary_embedding": case(lambda q: rotary_embedding(q, None, cos, sin), rotate, heads),
    }


def backward(call: Call) -> Call:
    """The call, and the gradient of all that its first result depends on."""
    import torch

    def both() -> None:
        result: Any = call()
        result = result[0] if isinstance(result, tuple) else result
        torch.autograd.backward((result,), (result.detach(),))

    return both


def least_recorded(device: str) -> Call:
    """The least that Python's autograd costs: a Function that makes an empty result and saves two tensors."""
    import torch

    x, weight = torch.randn(SHAPE, device=device), torch.nn.Parameter(torch.ones(64, device=device))

    class Least(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
            return None, None

    apply: Callable[..., object] = Least.apply
    return lambda: apply(x, weight)
