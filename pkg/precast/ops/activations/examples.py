"""Example calls of the activations."""

from __future__ import annotations

from precast.ops._folders import Examples
from precast.ops.activations import GatedKind

EXAMPLES: Examples = {
    "gated_activation": lambda some: (some(5, 66), GatedKind.SILU_AND_MUL),
    "gated_activation_backward": lambda some: (some(5, 33), some(5, 66), GatedKind.GELU_AND_MUL),
    "activation": lambda some: (some(5, 33), some(5, 33), GatedKind.SWIGLUOAI_AND_MUL, 1.702, 7.0),
    "activation_backward": lambda some: (some(5, 33), some(5, 33), some(5, 33), GatedKind.SILU_AND_MUL),
}
