"""Example calls of the ops for a mixture of experts."""

from __future__ import annotations

import torch

from precast.ops._folders import Examples

_IDS = torch.tensor([[3, 1], [0, 3], [-1, 4], [3, 0], [1, 6]])  # of seven experts; one pair is left out
_PLACES = torch.tensor([[5, 3], [0, 6], [~9, 8], [7, 1], [4, 2]], dtype=torch.int32)  # ten slots, each once
_CHOSEN = torch.tensor([[2, 0, 5], [1, 7, 3], [8, 4, 0]], dtype=torch.int32)

EXAMPLES: Examples = {
    "topk_gating": lambda some: (some(5, 12), some(12) * 0.1, 3, 4, 2, True, True, True, 2.5),
    "topk_gating_backward": lambda some: (some(3, 3), some(3, 9), _CHOSEN, False, True, 1.5),
    "moe_align_block_size": lambda some: (_IDS, 7, 4),
    "moe_positions": lambda some: (_IDS, 7),
    "moe_permute_few": lambda some: (some(5, 9), _IDS, 7),
    "moe_permute_rows": lambda some: (some(5, 9), _PLACES, 10, True),
    "moe_combine_rows": lambda some: (some(10, 9), _PLACES, some(5, 2), True),
    "moe_combine_rows_backward": lambda some: (some(5, 9), some(10, 9), _PLACES, some(5, 2), True),
}
