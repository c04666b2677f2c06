"""Modules over the package's kernels; the norms take the place of those of ``torch.nn``."""

from __future__ import annotations

import precast._load  # noqa: F401  # refuses a subinterpreter, in which the import of torch never ends
from precast.nn.norm import LayerNorm, RMSNorm
from precast.nn.softmax import FusedScaleMaskSoftmax

__all__ = ["FusedScaleMaskSoftmax", "LayerNorm", "RMSNorm"]
