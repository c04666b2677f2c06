"""Example calls of the image ops."""

from __future__ import annotations

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "bias_act": lambda some: (some(2, 3, 5, 7), some(3), 1, 2, 0.2, 1.5, 0.9),
    "bias_act_backward": lambda some: (some(2, 3, 5, 7), some(2, 3, 5, 7), some(3), 1, 8, 0.0, 1.5, -1.0, False, True),
    "upfirdn2d": lambda some: (some(2, 3, 5, 7), some(3, 4).float(), 2, 1, 1, 2, 2, 1, 1, -1, False, 2.0),
}
