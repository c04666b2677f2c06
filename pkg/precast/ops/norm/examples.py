"""Example calls of the norms and their gradients."""

from __future__ import annotations

from precast.ops._folders import Examples

EPS = 1e-6

EXAMPLES: Examples = {
    "rms_norm": lambda some: (some(5, 33), some(33), EPS, 0),
    "fused_add_rms_norm": lambda some: (some(5, 33), some(5, 33), some(33), EPS, 0),
    "fused_add_rms_norm_": lambda some: (some(5, 33), some(5, 33), some(33), EPS, 0),
    "rms_norm_backward": lambda some: (some(5, 33), some(5, 33), some(33), EPS, 0),
    "fused_add_rms_norm_backward": lambda some: (some(5, 33), some(5, 33), some(5, 33), some(33), EPS, 0),
    "rms_norm_gated": lambda some: (some(5, 33), some(5, 33), some(33), EPS, 1, False, False, 11),
    "rms_norm_gated_backward": lambda some: (
        *(some(5, 33), some(5, 33), some(5, 33), some(33), EPS, 0, True, False, 0),
    ),
    "l2_norm": lambda some: (some(5, 33), EPS),
    "l2_norm_backward": lambda some: (some(5, 33), some(5, 33), EPS),
    "layer_norm": lambda some: (some(5, 33), some(33), some(33), EPS),
    "layer_norm_backward": lambda some: (some(5, 33), some(5, 33), some(33), EPS, True, True),
}
