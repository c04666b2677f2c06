"""Example calls of the ops of cross entropy."""

from __future__ import annotations

import torch

from precast.ops._folders import Examples

_TARGET = torch.tensor([[3, 0, -100], [32, 7, 1]])
_OPTIONS = (-100, 0.1, 1e-3)

EXAMPLES: Examples = {
    "cross_entropy": lambda some: (some(2, 3, 33), _TARGET, some(33).float().abs(), some(2).float(), *_OPTIONS),
    "cross_entropy_with_grad": lambda some: (
        some(2, 3, 33),
        _TARGET,
        some(33).float().abs(),
        some(2).float(),
        *_OPTIONS,
    ),
    "cross_entropy_with_grad_": lambda some: (
        some(2, 3, 33),
        _TARGET,
        some(33).float().abs(),
        some(2).float(),
        *_OPTIONS,
    ),
    "cross_entropy_backward": lambda some: (some(2, 3, 33), _TARGET, some(4, 6).float().abs(), some(33).float()),
    "cross_entropy_scale_": lambda some: (some(2, 3, 33), some(6).float()),
}
