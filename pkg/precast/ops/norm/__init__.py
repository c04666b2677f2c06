"""Norms over the last dimensions: RMS norm, alone, with a residual addition or a gate, layer norm, and norms by length.

Parameters have the dtype of ``x``, or float32 for a narrower ``x``. Arithmetic is in float32, and a result
has the dtype of ``x``; the gradient of a parameter has the dtype of the parameter.

For RMS norm, ``casting`` defines where the result for low-precision inputs is rounded:

- ``"none"``: everything in float32, rounded once at the end;
- ``"llama"``: the normalised value is rounded to ``x``'s dtype, then multiplied by ``weight`` in that dtype;
- ``"gemma"``: as ``"none"``, with ``1 + weight`` in place of ``weight``.
"""

from __future__ import annotations

from precast.ops.norm._gated import l2_norm, rms_norm_gated
from precast.ops.norm._layer_norm import layer_norm
from precast.ops.norm._rms_norm import (
    CASTINGS,
    GEMMA,
    LLAMA,
    RMS_NORM,
    RMS_NORM_BACKWARD,
    Casting,
    casting_code,
    fused_add_rms_norm,
    fused_add_rms_norm_,
    rms_norm,
)

__all__ = [
    "CASTINGS",
    "GEMMA",
    "LLAMA",
    "RMS_NORM",
    "RMS_NORM_BACKWARD",
    "Casting",
    "casting_code",
    "fused_add_rms_norm",
    "fused_add_rms_norm_",
    "l2_norm",
    "layer_norm",
    "rms_norm",
    "rms_norm_gated",
]
