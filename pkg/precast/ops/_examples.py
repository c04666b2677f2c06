"""One small call of every op and what it must give: what ``precast doctor --deep`` checks a loaded kernel with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from precast.ops import (
    _decode_attention_reference,
    _kv_cache_reference,
    _reference,
    _rotary_reference,
    _softmax_reference,
)

_EPS = 1e-6
_PAIRS = (torch.tensor([4, 0, 2]), True)  # positions of three tokens, and that pairs are neighbours
Arguments = tuple[Any, ...]

# The ops of an optimizer's plan, which have no arguments that would mean anything by themselves.
PLANNED = ("multi_tensor_plan", "multi_tensor_step_", "multi_tensor_forget", "optimize_again_")


def arguments(op: str) -> Arguments:
    """What one op is called with: the same numbers every time, odd sizes, on the CPU."""
    random = torch.Generator().manual_seed(20)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    make: dict[str, Callable[[], Arguments]] = {
        "rms_norm": lambda: (some(5, 33), some(33), _EPS, _reference.CASTINGS["none"]),
        "fused_add_rms_norm": lambda: (some(5, 33), some(5, 33), some(33), _EPS, 0),
        "fused_add_rms_norm_": lambda: (some(5, 33), some(5, 33), some(33), _EPS, 0),
        "rms_norm_backward": lambda: (some(5, 33), some(5, 33), some(33), _EPS, 0),
        "fused_add_rms_norm_backward": lambda: (some(5, 33), some(5, 33), some(5, 33), some(33), _EPS, 0),
        "layer_norm": lambda: (some(5, 33), some(33), some(33), _EPS),
        "layer_norm_backward": lambda: (some(5, 33), some(5, 33), some(33), _EPS, True, True),
        "gated_activation": lambda: (some(5, 66), _reference.GatedKind.SILU_AND_MUL),
        "gated_activation_backward": lambda: (some(5, 33), some(5, 66), _reference.GatedKind.GELU_AND_MUL),
        "scaled_softmax": lambda: (some(2, 3, 5, 33), 0.5),
        "scaled_masked_softmax": lambda: (some(2, 3, 5, 33), some(2, 1, 5, 33) > 1, 0.5, -10000.0, True),
        "scaled_upper_triang_masked_softmax": lambda: (some(3, 33, 33), 0.5),
        "scaled_aligned_causal_softmax": lambda: (some(3, 5, 33), 0.5),
        "scaled_softmax_backward": lambda: (some(3, 5, 33), torch.softmax(some(3, 5, 33), -1), 0.5, False),
        "rotary_embedding": lambda: (some(2, 3, 4, 33), some(2, 3, 1, 33), some(5, 7), some(5, 7), *_PAIRS, False),
        "rotary_embedding_": lambda: (some(3, 4, 33), some(3, 1, 33), some(5, 7), some(5, 7), *_PAIRS, True),
        "adam_": lambda: (
            *([some(33)], [some(33)], [some(33)], [some(33).abs()], []),
            *(1e-2, 0.9, 0.99, 1e-8, 1e-2, 0.5, 0.5, 1.0, True, False),
        ),
        "optimize_": lambda: (
            *([some(33)], [some(33)], [some(33)], [some(33).abs()], [some(33).abs()], [torch.tensor(4.0)], []),
            torch.empty(0, dtype=torch.int64),
            torch.tensor([1e-2, 0.9, 0.99, 1e-8, 1e-2, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64),
            *(1.0, 0),
        ),
        "multi_tensor_l2norm": lambda: ([some(33), some(5, 7)],),
        "reshape_and_cache": lambda: (
            *(some(5, 2, 6), some(5, 2, 6), some(3, 2, 3, 4, 2), some(3, 2, 4, 6)),
            torch.tensor([3, -1, 11, 0, 4]),
        ),
        "rotary_embedding_and_cache": lambda: (
            *(some(3, 4, 6), some(3, 2, 6), some(3, 2, 6), some(5, 2), some(5, 2)),
            *(some(2, 4, 2, 6), some(2, 4, 2, 6), torch.tensor([7, -1, 2]), *_PAIRS),
        ),
        "paged_decode_attention": lambda: (
            *(some(2, 3, 4, 64), some(3, 4, 2, 64), some(3, 4, 2, 80)),
            *(torch.tensor([[2, 0, 1], [1, 2, 0]]), torch.tensor([11, 2])),
            *(0.125, 6, 30.0, some(4).abs(), some(4), some(2).abs(), some(1).abs()),
        ),
        "multi_tensor_axpby_": lambda: ([some(33)], [some(33)], [some(33)], 0.5, -2.0, some(1), some(1)),
    }
    if op not in make:
        raise KeyError(f"no example for {op!r}: it wants one in precast/ops/_examples.py")
    return make[op]()


def reference(op: str) -> Callable[..., Any]:
    """The same computation in plain torch."""
    name = "scaled_aligned_causal_softmax" if op == "scaled_upper_triang_masked_softmax" else op  # equal on squares
    modules = (
        _reference,
        _softmax_reference,
        _rotary_reference,
        _kv_cache_reference,
        _decode_attention_reference,
    )
    found: Callable[..., Any] = next(getattr(module, name) for module in modules if hasattr(module, name))
    return found
