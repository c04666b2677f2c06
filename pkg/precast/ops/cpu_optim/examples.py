"""Example calls of a step of a CPU optimizer."""

from __future__ import annotations

import torch

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "optimize_": lambda some: (
        *([some(33)], [some(33)], [some(33)], [some(33).abs()], [some(33).abs()], [torch.tensor(4.0)], []),
        torch.empty(0, dtype=torch.int64),
        torch.tensor([1e-2, 0.9, 0.99, 1e-8, 1e-2, 0.0, 2.0, 1.0], dtype=torch.float64),
        *(1.0, 0),
    ),
    "optimize_again_": None,  # callable only after a step
}
