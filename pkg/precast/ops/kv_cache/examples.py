"""Example calls of the ops that write to paged caches."""

from __future__ import annotations

import torch

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "reshape_and_cache": lambda some: (
        *(some(5, 2, 6), some(5, 2, 6), some(3, 2, 3, 4, 2), some(3, 2, 4, 6)),
        torch.tensor([3, -1, 11, 0, 4]),
    ),
    "rms_norm_rotary_embedding_and_cache": lambda some: (
        *(some(3, 4, 6), some(3, 2, 6), some(3, 2, 6), some(6), some(6), some(5, 2), some(5, 2)),
        *(some(2, 4, 2, 6), some(2, 4, 2, 6), torch.tensor([7, -1, 2]), torch.tensor([4, 0, 2])),
        *(1e-6, 1, True, True),
    ),
    "rotary_embedding_and_cache": lambda some: (
        *(some(3, 4, 6), some(3, 2, 6), some(3, 2, 6), some(5, 2), some(5, 2)),
        *(some(2, 4, 2, 6), some(2, 4, 2, 6), torch.tensor([7, -1, 2]), torch.tensor([4, 0, 2]), True),
    ),
}
