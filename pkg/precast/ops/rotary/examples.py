"""Example calls of rotary embedding."""

from __future__ import annotations

import torch

from precast.ops._folders import Examples

_PAIRS = (torch.tensor([4, 0, 2]), True)  # positions of three tokens, and interleaved pairs

EXAMPLES: Examples = {
    "rms_norm_rotary_embedding": lambda some: (
        *(some(2, 3, 4, 33), some(2, 3, 1, 33), some(33), some(33), some(5, 7), some(5, 7), _PAIRS[0]),
        *(1e-6, 1, True, True, False),
    ),
    "rotary_embedding": lambda some: (some(2, 3, 4, 33), some(2, 3, 1, 33), some(5, 7), some(5, 7), *_PAIRS, False),
    "rotary_embedding_": lambda some: (some(3, 4, 33), some(3, 1, 33), some(5, 7), some(5, 7), *_PAIRS, True),
}
