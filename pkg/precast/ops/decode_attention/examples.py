"""Example calls of decode attention."""

from __future__ import annotations

import torch

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "paged_decode_attention": lambda some: (
        *(some(2, 3, 4, 64), some(3, 4, 2, 64), some(3, 4, 2, 80)),
        *(torch.tensor([[2, 0, 1], [1, 2, 0]]), torch.tensor([11, 2])),
        *(0.125, 6, 30.0, some(4).abs(), some(4), some(2).abs(), some(1).abs()),
    ),
}
