"""A small random model of a class of transformers, for trying what is adopted in it."""

from __future__ import annotations

import inspect
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
    "num_heads": 8,
    **dict.fromkeys(("head_dim", "global_head_dim", "kv_channels", "linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "num_kv_shared_layers", "n_shared_experts"), 1),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "n_positions", "nemo_conv_channels"), 128),
    **dict.fromkeys(("hidden_size_per_layer_input", "max_source_positions", "rotary_dim"), 16),
    "image_size": 32,
}
# Sizes that some models need although None is the default of their configuration.
_NEEDED = ("num_key_value_heads", "head_dim", "num_experts_per_tok", "n_shared_experts")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "suppress_tokens", "begin_suppress_tokens")


def small(cls: Any, sizes: Mapping[str, Any] | None = None) -> Module:
    """A model with few and narrow layers, one of each type at least; ``sizes`` come before those of this file."""
    return cls(_config(cls.config_class, sizes or {}))  # type: ignore[no-any-return]


def _config(cls: Any, sizes: Mapping[str, Any]) -> Any:
    default = cls()
    known = {**default.to_dict(), **getattr(cls, "attribute_map", {})}
    given: dict[str, Any] = {
        name: size
        for name, size in _SIZES.items()
        if (isinstance(known.get(name), (int, str)) and known[name]) or (name in _NEEDED and known.get(name, 0) is None)
    }
    if "kv_lora_rank" in given and "num_key_value_heads" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]  # each head has keys of its own
    kinds = getattr(default, "layer_types", None) or ()
    if kinds and "num_hidden_layers" in known:
        given |= _layers(cls, list(kinds), twice="num_kv_shared_layers" in given)
    for name, declared in getattr(cls, "sub_configs", {}).items():
        part = getattr(default, name, None)
        kind = declared if part is None else type(part)  # declared is AutoConfig where the default chooses
        if hasattr(kind, "to_dict"):
            made = _config(kind, sizes).to_dict()
            given[name] = {key: value for key, value in made.items() if value is not None}
    given |= {name: size for name, size in sizes.items() if name in known}
    tokens = {name: _token(known[name], given.get("vocab_size")) for name in _TOKENS if name in known}
    return cls(**{**tokens, **given})


def _layers(cls: Any, kinds: list[str], *, twice: bool) -> dict[str, Any]:
    """How many layers, and of which kinds, ``twice`` or once; some configurations compute the kinds."""
    once = list(dict.fromkeys(kinds))
    own = inspect.getattr_static(cls, getattr(cls, "attribute_map", {}).get("layer_types", "layer_types"), None)
    if isinstance(own, property) and own.fset is None:
        return {"num_hidden_layers": max(2, *(kinds.index(kind) + 1 for kind in once))}
    all_kinds = once * 2 if twice else (once * 2)[: max(2, len(once))]
    return {"num_hidden_layers": len(all_kinds), "layer_types": all_kinds}


def _token(default: Any, vocabulary: int | None) -> int | None:
    """A special token in a small vocabulary; of several, none."""
    return default % vocabulary if isinstance(default, int) and vocabulary else None
