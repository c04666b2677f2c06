"""The public loaders. Each has several extensions and loads the best one for this machine.

``CPUAdamLoader().load()`` returns a module-like object; its ``source`` says where the kernels came from. The choice of
an extension is cached until an extension is registered or unregistered. A named extension, ``load(ext_name=...)``, goes
through the same checks as a chosen one. Installed packages can announce extensions by entry points.
"""

from precast._load.verdict import assert_not_pure
from precast.compat.loaders import (
    ActivationsLoader,
    ConvolutionLoader,
    CPUAdamLoader,
    DeltaRuleLoader,
    FlashAttentionDaoLoader,
    FlashAttentionForFloatAndCustomMaskLoader,
    FlashAttentionLoader,
    FlashAttentionWithCustomMaskLoader,
    FusedOptimizerLoader,
    ImageOpsLoader,
    InferenceOpsLoader,
    KVCacheLoader,
    LayerNormLoader,
    LossLoader,
    MoeLoader,
    RMSNormLoader,
    RotaryLoader,
    ScaledMaskedSoftmaxLoader,
    ScaledUpperTriangleMaskedSoftmaxLoader,
    SoftmaxLoader,
    StateSpaceLoader,
)
from precast.compat.loaders import home_of as home_of  # noqa: PLC0414 - exported
from precast.compat.loaders import loaders as loaders  # noqa: PLC0414 - exported
from precast.compat.loaders import shipped_names as shipped_names  # noqa: PLC0414 - exported
from precast.extension.loader import KernelLoader

__all__ = [
    "ActivationsLoader",
    "CPUAdamLoader",
    "ConvolutionLoader",
    "DeltaRuleLoader",
    "FlashAttentionDaoLoader",
    "FlashAttentionForFloatAndCustomMaskLoader",
    "FlashAttentionLoader",
    "FlashAttentionWithCustomMaskLoader",
    "FusedOptimizerLoader",
    "ImageOpsLoader",
    "InferenceOpsLoader",
    "KVCacheLoader",
    "KernelLoader",
    "LayerNormLoader",
    "LossLoader",
    "MoeLoader",
    "RMSNormLoader",
    "RotaryLoader",
    "ScaledMaskedSoftmaxLoader",
    "ScaledUpperTriangleMaskedSoftmaxLoader",
    "SoftmaxLoader",
    "StateSpaceLoader",
    "assert_not_pure",
]
