"""The ops. Importing this defines their schemas and formulas; kernels are loaded at the first call on a device."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import precast._load  # noqa: F401  # refuses a subinterpreter, in which the import of torch never ends
from precast._builder import catalogue
from precast.ops.activations import gelu_and_mul, gelu_tanh_and_mul, mul_and_silu, silu_and_mul
from precast.ops.adam import adam_
from precast.ops.layer_norm import layer_norm
from precast.ops.rms_norm import fused_add_rms_norm, fused_add_rms_norm_, rms_norm
from precast.ops.softmax import (
    scaled_aligned_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    scaled_upper_triang_masked_softmax,
)

if TYPE_CHECKING:
    from precast.ops.decode_attention import paged_decode_attention
    from precast.ops.kv_cache import reshape_and_cache, rotary_embedding_and_cache
    from precast.ops.multi_tensor import (
        clip_grad_norm_,
        multi_tensor_axpby_,
        multi_tensor_l2norm,
        multi_tensor_scale_,
    )
    from precast.ops.rotary import get_cos_and_sin, rotary_embedding, rotary_embedding_

__all__ = [
    "adam_",
    "clip_grad_norm_",
    "fused_add_rms_norm",
    "fused_add_rms_norm_",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "get_cos_and_sin",
    "layer_norm",
    "mul_and_silu",
    "multi_tensor_axpby_",
    "multi_tensor_l2norm",
    "multi_tensor_scale_",
    "paged_decode_attention",
    "reshape_and_cache",
    "rms_norm",
    "rotary_embedding",
    "rotary_embedding_",
    "rotary_embedding_and_cache",
    "scaled_aligned_causal_softmax",
    "scaled_masked_softmax",
    "scaled_softmax",
    "scaled_upper_triang_masked_softmax",
    "silu_and_mul",
]

# Imported on first use, to keep other first calls fast: each name with its module.
_LATE = {
    "paged_decode_attention": "decode_attention",
    **dict.fromkeys(
        ("clip_grad_norm_", "multi_tensor_axpby_", "multi_tensor_l2norm", "multi_tensor_scale_"), "multi_tensor"
    ),
    **dict.fromkeys(("reshape_and_cache", "rotary_embedding_and_cache"), "kv_cache"),
    **dict.fromkeys(("get_cos_and_sin", "rotary_embedding", "rotary_embedding_"), "rotary"),
}


def define(family: str) -> None:
    """Defines the ops of a family by its name, if nobody has yet: the module of a late one is imported."""
    if catalogue.get(family).late:
        importlib.import_module(f"{__name__}.{family}")


def __getattr__(name: str) -> Any:
    """Imports the module of a late op."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"precast.ops.{_LATE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
