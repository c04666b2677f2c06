"""The import path of the older package's TorchScript helpers, which are in :mod:`precast.compat.jit`."""

from precast.compat.jit import (
    GeLUFunction,
    bias_dropout_add_fused_inference,
    bias_dropout_add_fused_train,
    bias_gelu_impl,
    set_jit_fusion_options,
    warmup_jit_fusion,
)

__all__ = [
    "GeLUFunction",
    "bias_dropout_add_fused_inference",
    "bias_dropout_add_fused_train",
    "bias_gelu_impl",
    "set_jit_fusion_options",
    "warmup_jit_fusion",
]
