"""A small random model of a class of transformers, for trying what is adopted in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn import Module

# What a configuration says, where it says that.
_SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "encoder_hidden_size"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "encoder_layers", "decoder_layers", "num_blocks"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads", "multi_query_group_num"), 2),
    "linear_num_value_heads": 4,
    **dict.fromkeys(("head_dim", "global_head_dim", "kv_channels", "linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "num_kv_shared_layers"), 1),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "n_positions", "nemo_conv_channels"), 128),
    **dict.fromkeys(("hidden_size_per_layer_input", "max_source_positions"), 16),
    "image_size": 32,
}
_NONE = ("bos_token_id", "eos_token_id", "pad_token_id", "suppress_tokens", "begin_suppress_tokens")


def small(cls: Any, sizes: Mapping[str, Any] | None = None) -> Module:
    """A model with few and narrow layers, one of each type at least; ``sizes`` come before those of this file."""
    return cls(_config(cls.config_class, sizes or {}))  # type: ignore[no-any-return]


def _config(cls: Any, sizes: Mapping[str, Any]) -> Any:
    default = cls()
    known = {**default.to_dict(), **getattr(cls, "attribute_map", {})}
    given: dict[str, Any] = {name: size for name, size in _SIZES.items() if known.get(name) not in (None, 0)}
    if "kv_lora_rank" in given and "num_key_value_heads" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]  # each head has keys of its own
    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or ()))
    if kinds and "num_hidden_layers" in known:
        kinds = (kinds * 2)[: max(2, len(kinds))]
        given |= {"num_hidden_layers": len(kinds), "layer_types": kinds}
    parts = {name: part for name, part in getattr(cls, "sub_configs", {}).items() if hasattr(part, "to_dict")}
    given |= {name: _config(part, sizes).to_dict() for name, part in parts.items()}
    tokens = dict.fromkeys(name for name in _NONE if name in known)
    return cls(**{**given, **tokens, **{name: size for name, size in sizes.items() if name in known}})
