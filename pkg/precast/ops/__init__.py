"""The ops. Importing this defines their schemas and formulas; kernels are loaded at the first call on a device."""

from __future__ import annotations

from precast.ops.adam import adam_
from precast.ops.layer_norm import layer_norm
from precast.ops.rms_norm import fused_add_rms_norm, fused_add_rms_norm_, rms_norm

__all__ = ["adam_", "fused_add_rms_norm", "fused_add_rms_norm_", "layer_norm", "rms_norm"]
