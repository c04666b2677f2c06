"""Example calls of softmax and its gradient."""

from __future__ import annotations

import torch

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "scaled_softmax": lambda some: (some(2, 3, 5, 33), 0.5),
    "scaled_masked_softmax": lambda some: (some(2, 3, 5, 33), some(2, 1, 5, 33) > 1, 0.5, -10000.0, True),
    "scaled_upper_triang_masked_softmax": lambda some: (some(3, 33, 33), 0.5),
    "scaled_aligned_causal_softmax": lambda some: (some(3, 5, 33), 0.5),
    "scaled_softmax_backward": lambda some: (some(3, 5, 33), torch.softmax(some(3, 5, 33), -1), 0.5, False),
}
