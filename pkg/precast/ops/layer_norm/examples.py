"""Example calls of layer norm and its gradients."""

from __future__ import annotations

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "layer_norm": lambda some: (some(5, 33), some(33), some(33), 1e-6),
    "layer_norm_backward": lambda some: (some(5, 33), some(5, 33), some(33), 1e-6, True, True),
}
