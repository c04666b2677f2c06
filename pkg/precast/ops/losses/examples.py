"""Example calls of the ops of cross entropy."""

from __future__ import annotations

from typing import Any

import torch

from precast.ops._folders import Examples, Some

_TARGET = torch.tensor([[3, 0, -100], [32, 7, 1]])


def _loss(some: Some) -> tuple[Any, ...]:
    return some(2, 3, 33), _TARGET, some(33).float().abs(), some(2).float(), -100, 0.1, 1e-3


EXAMPLES: Examples = {
    **dict.fromkeys(("cross_entropy", "cross_entropy_with_grad", "cross_entropy_with_grad_"), _loss),
    "cross_entropy_backward": lambda some: (some(2, 3, 33), _TARGET, some(4, 6).float().abs(), some(33).float()),
    "cross_entropy_scale_": lambda some: (some(2, 3, 33), some(6).float()),
}
