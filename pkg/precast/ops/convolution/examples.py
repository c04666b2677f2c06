"""Example calls of the causal convolutions."""

from __future__ import annotations

import torch

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "causal_conv1d": lambda some: (
        *(some(1, 5, 9), some(5, 4), some(5), some(3, 5, 3), None, torch.tensor([0, 2, 2, 8]), True, True),
    ),
    "causal_conv1d_backward": lambda some: (
        *(some(2, 5, 9), some(2, 5, 3), some(2, 5, 9), some(5, 4), some(5), some(2, 5, 3)),
        *(torch.tensor([[0] * 4 + [1] * 5, [0] * 7 + [-1] * 2]), None, True),
    ),
    "causal_conv1d_update_": lambda some: (
        *(some(3, 5, 2), some(6, 5, 5), some(5, 4), some(5), torch.tensor([4, -1, 0]), torch.tensor([9, 0, 3]), True),
    ),
}
