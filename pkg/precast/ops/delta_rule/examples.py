"""Example calls of the delta rule."""

from __future__ import annotations

import torch

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "gated_delta_rule": lambda some: (
        *(some(1, 70, 2, 17), some(1, 70, 2, 17), some(1, 70, 4, 33), -some(1, 70, 4).abs(), some(1, 70, 4).sigmoid()),
        *(some(2, 4, 17, 33), torch.tensor([0, 66, 70]), 0.25, True),
    ),
    "gated_delta_rule_update_": lambda some: (
        *(some(3, 2, 2, 17), some(3, 2, 2, 17), some(3, 2, 4, 33), -some(3, 2, 4).abs(), some(3, 2, 4).sigmoid()),
        *(some(5, 4, 17, 33), torch.tensor([[2, 0], [1, -1], [-1, 3]]), torch.tensor([1, 1, 1]), 0.25, True),
    ),
}
