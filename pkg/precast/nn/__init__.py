"""Modules over the package's kernels, in the place of those of ``torch.nn``."""

from __future__ import annotations

from precast.nn.norm import LayerNorm, RMSNorm

__all__ = [
    "LayerNorm",
    "RMSNorm",
]
