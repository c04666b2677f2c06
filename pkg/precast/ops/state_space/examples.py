"""Example calls of the state-space ops."""

from __future__ import annotations

import torch

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "selective_state_update_": lambda some: (
        *(some(5, 4, 6, 9), some(3, 4, 6), some(3, 4), -some(4).abs(), some(3, 2, 9), some(3, 2, 9), some(4)),
        *(some(3, 4, 6), some(4), torch.tensor([4, -1, 0]), True),
    ),
}
