"""The loaders. Each has the extensions over the kernels of some families, with the members that its users expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from precast._builder.catalogue import FAMILIES
from precast.compat.flash_attention import (
    FlashAttentionDaoCudaExtension,
    FlashAttentionNpuExtension,
    FlashAttentionSdpaCudaExtension,
    FlashAttentionTorchExtension,
)
from precast.compat.members import Members, members
from precast.extension import families
from precast.extension.families import FamilyExtension
from precast.extension.loader import ExtensionClass, KernelLoader


def _over(
    stem: str,
    served: tuple[str, ...],
    *modules: str,
    functions: str = "",
    ops: str = "",
    machines: Mapping[str, str] | None = None,
) -> list[ExtensionClass]:
    """The extensions over families: modules of this folder, functions of ``precast.ops`` and ops are their members."""

    def give(plain: bool) -> Members:
        return members(modules, functions.split(), ops.split(), plain=plain)

    return [*families.over(stem, served, give, machines)]


def _former(stem: str) -> Mapping[str, str]:
    """The name of extensions in Triton, which plain torch answers."""
    return {f"{stem}_triton": f"{stem}_torch"}


class ActivationsLoader(KernelLoader):
    """Gated activations, by their names in ``precast.ops``."""

    REGISTRY = _over(
        "activations",
        ("activations", "activations_backward"),
        functions="silu_and_mul gelu_and_mul gelu_tanh_and_mul mul_and_silu fatrelu_and_mul swigluoai_and_mul "
        "gelu_quick gelu_new",
    )
    ALIASES = _former("activations")


class ConvolutionLoader(KernelLoader):
    """Causal convolutions, also by the names of causal-conv1d: ``causal_conv1d_fn``, ``causal_conv1d_update``."""

    REGISTRY = _over(
        "convolution",
        ("causal_conv1d", "causal_conv1d_backward"),
        "causal_conv1d",
        functions="causal_conv1d causal_conv1d_update_",
    )


class CPUAdamLoader(KernelLoader):
    """Adam and AdamW on the CPU: ``CPUAdamOptimizer``."""

    REGISTRY = _over("cpu_adam", ("cpu_adam", "cpu_optim"), "adam", machines={"x86": "x86_64", "arm": "aarch64"})


class DeltaRuleLoader(KernelLoader):
    """The gated delta rule: ``gated_delta_rule``, ``gated_delta_rule_update_``."""

    REGISTRY = _over("delta_rule", ("delta_rule",), functions="gated_delta_rule gated_delta_rule_update_")


class FlashAttentionDaoLoader(KernelLoader):
    """Attention by flash-attn."""

    REGISTRY: ClassVar[list[ExtensionClass]] = [FlashAttentionDaoCudaExtension]


class FlashAttentionForFloatAndCustomMaskLoader(KernelLoader):
    """Attention with a custom mask, in float32 as well."""

    REGISTRY: ClassVar[list[ExtensionClass]] = [FlashAttentionSdpaCudaExtension, FlashAttentionTorchExtension]


class FlashAttentionLoader(KernelLoader):
    """Attention by the best available of flash-attn, torch_npu and torch."""

    REGISTRY: ClassVar[list[ExtensionClass]] = [
        FlashAttentionNpuExtension,
        FlashAttentionDaoCudaExtension,
        FlashAttentionSdpaCudaExtension,
        FlashAttentionTorchExtension,
    ]


class FlashAttentionWithCustomMaskLoader(KernelLoader):
    """Attention with a custom mask."""

    REGISTRY: ClassVar[list[ExtensionClass]] = [
        FlashAttentionNpuExtension,
        FlashAttentionSdpaCudaExtension,
        FlashAttentionTorchExtension,
    ]


class FusedOptimizerLoader(KernelLoader):
    """Lists of GPU tensors.

    ``multi_tensor_adam``, ``_sgd``, ``_adagrad``, ``_lamb``, ``_scale``, ``_axpby``, ``_l2norm``.
    """

    REGISTRY = _over("fused_optim", ("multi_tensor",), "lists")
    ALIASES = _former("fused_optim")


class ImageOpsLoader(KernelLoader):
    """Image generators.

    ``bias_act``, ``fused_leaky_relu``, ``upfirdn2d``, ``filter2d``, ``upsample2d``, ``downsample2d``.
    """

    REGISTRY = _over(
        "image_ops",
        ("bias_act", "upfirdn2d"),
        functions="bias_act fused_leaky_relu setup_filter upfirdn2d filter2d upsample2d downsample2d",
    )
    ALIASES = _former("image_ops")


class InferenceOpsLoader(KernelLoader):
    """The inference kernels: RMS norms, ``silu_and_mul``, rotary embedding, paged caches, decode attention."""

    REGISTRY = _over("inference_ops", ("rms_norm", "activations"), "inference")
    ALIASES = _former("inference_ops")


class KVCacheLoader(KernelLoader):
    """Paged caches: ``reshape_and_cache``, ``rotary_embedding_and_cache``."""

    REGISTRY = _over(
        "kv_cache",
        ("kv_cache", "decode_attention"),
        functions="reshape_and_cache rotary_embedding_and_cache paged_decode_attention",
    )


class LayerNormLoader(KernelLoader):
    """Layer norm: ``layer_norm``, and apex's ``fused_layer_norm_cuda`` with ``forward_affine`` and others."""

    REGISTRY = _over("layer_norm", ("layer_norm", "layer_norm_backward"), "norms", functions="layer_norm")
    ALIASES: ClassVar[Mapping[str, str]] = {**_former("layer_norm"), "layernorm_cuda": "layer_norm_cuda"}


class LossLoader(KernelLoader):
    """Cross entropy of each row: ``cross_entropy``, ``cross_entropy_with_grad``, ``cross_entropy_with_grad_``."""

    REGISTRY = _over("losses", ("cross_entropy",), ops="cross_entropy cross_entropy_with_grad cross_entropy_with_grad_")


class MoeLoader(KernelLoader):
    """Mixture of experts: dispatch and combine by capacity, gating, alignment to blocks, permutation of rows."""

    REGISTRY = _over(
        "moe",
        ("moe_routing", "moe"),
        "moe",
        functions="topk_softmax topk_sigmoid moe_align_block_size moe_permute moe_unpermute",
    )


class RMSNormLoader(KernelLoader):
    """RMS norm, alone and fused with the addition of a residual: ``rms_layernorm``, ``fused_add_rms_layernorm``."""

    REGISTRY = _over(
        "rms_norm",
        ("rms_norm", "rms_norm_backward", "rms_norm_gated", "rms_norm_gated_backward"),
        "rms_norms",
        functions="rms_norm_gated l2_norm",
    )
    ALIASES = _former("rms_norm")


class RotaryLoader(KernelLoader):
    """Rotary embedding: ``rotary_embedding``, ``rotary_embedding_``, ``get_cos_and_sin``."""

    REGISTRY = _over("rotary", ("rotary",), functions="rotary_embedding rotary_embedding_ get_cos_and_sin")


class ScaledMaskedSoftmaxLoader(KernelLoader):
    """Softmax with a mask: ``forward``, ``backward``, ``get_batch_per_block``."""

    REGISTRY = _over("scaled_masked_softmax", ("softmax", "softmax_backward"), "masked_softmax")
    ALIASES = _former("scaled_masked_softmax")


class ScaledUpperTriangleMaskedSoftmaxLoader(KernelLoader):
    """Causal softmax: ``forward``, ``backward``."""

    REGISTRY = _over("scaled_upper_triangle_masked_softmax", ("softmax", "softmax_backward"), "causal_softmax")
    ALIASES = _former("scaled_upper_triangle_masked_softmax")


class SoftmaxLoader(KernelLoader):
    """Softmax of scaled scores: plain, masked, causal, by their names in ``precast.ops``."""

    REGISTRY = _over(
        "softmax",
        ("softmax", "softmax_backward"),
        functions="scaled_masked_softmax scaled_softmax scaled_upper_triang_masked_softmax "
        "scaled_aligned_causal_softmax",
    )
    ALIASES = _former("softmax")


class StateSpaceLoader(KernelLoader):
    """Tokens of Mamba 2, also by the name of mamba-ssm: ``selective_state_update``."""

    REGISTRY = _over("state_space", ("selective_state_update",), "mamba_ssm", functions="selective_state_update_")


# The extensions that each loader begins with; a registration changes only the loader's own list.
_BUILT_IN = {one: tuple(one.REGISTRY) for one in KernelLoader.__subclasses__() if one.__module__ == __name__}
_SAME_KERNELS = (InferenceOpsLoader, ScaledMaskedSoftmaxLoader, ScaledUpperTriangleMaskedSoftmaxLoader)


def loaders() -> tuple[type[KernelLoader], ...]:
    """The loaders of this package."""
    return tuple(_BUILT_IN)


def home_of(name: str) -> type[KernelLoader] | None:
    """The loader that has a built-in extension with this name or former name."""
    return next((loader for loader in _BUILT_IN if name in shipped_names(loader)), None)


def shipped_names(loader: type[KernelLoader]) -> list[str]:
    """The names, including former ones, of the built-in extensions of a loader."""
    return [*(extension().name for extension in _BUILT_IN.get(loader, ())), *loader.ALIASES]


def with_kernels() -> list[type[FamilyExtension]]:
    """The extensions over kernels, so that each family appears once for a device, in the catalogue's order.

    A family without a loader gets extensions of its own name.
    """
    own = [one for loader, made in _BUILT_IN.items() if loader not in _SAME_KERNELS for one in made]
    served = {family for one in own for family in getattr(one, "families", ())}
    alone = [one for family in FAMILIES if family not in served for one in families.over(family.name, (family.name,))]
    found = [one for one in (*own, *alone) if isinstance(one, type) and issubclass(one, FamilyExtension)]
    return sorted(found, key=lambda one: FAMILIES.index(one.families[0]))
