"""A small random batch for the models of transformers, timm and diffusers, made from what their configuration says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

_TOKENS = 12
_PADDED = 4  # of the second sequence
_ONE_LABEL_PER_TOKEN = re.compile(r"ForCausalLM$|LMHeadModel$|ForMaskedLM$|ForConditionalGeneration$")


def sample(model: Any, count: int = _TOKENS) -> Mapping[str, Any] | None:
    """The keyword arguments of a call, two sequences of ``count`` tokens or two images; None for other models."""
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is None:
        return None
    config = getattr(model, "config", None)
    generator = torch.Generator("cpu").manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(first.device, first.dtype)

    def tokens(vocabulary: int, count: int) -> Tensor:
        return torch.randint(0, vocabulary, (2, count), generator=generator).to(first.device)

    if hasattr(model, "main_input_name") and config is not None:
        return _of_transformers(model, config, random, tokens, count)
    if hasattr(model, "pretrained_cfg") or hasattr(model, "default_cfg"):
        cfg = getattr(model, "pretrained_cfg", None) or model.default_cfg
        size = getattr(getattr(model, "patch_embed", None), "img_size", None) or cfg["input_size"][-2:]
        return {"x": random(2, cfg["input_size"][0], *size)}
    if config is not None and "sample" in inspect.signature(model.forward).parameters:
        return _of_diffusers(config, random, first.device)
    return None


def named(model: Module, given: Any) -> Mapping[str, Any]:
    """A batch of the caller, a mapping or what comes by position, as keyword arguments."""
    if isinstance(given, Mapping):
        return given
    values = given if isinstance(given, (tuple, list)) else (given,)
    return inspect.signature(model.forward).bind(*values).arguments


def _of_transformers(model: Any, config: Any, random: Any, tokens: Any, count: int) -> Mapping[str, Any] | None:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None) or count
    wrapped = model.get_base_model() if hasattr(model, "get_base_model") else model  # by an adapter of PEFT
    labels = bool(_ONE_LABEL_PER_TOKEN.search(type(wrapped).__name__))
    batch: dict[str, Any]
    if model.main_input_name == "input_ids":
        ids = tokens(text.vocab_size, min(count, longest))
        mask = torch.ones_like(ids)
        mask[1, :_PADDED] = 0
        batch = {"input_ids": ids, "attention_mask": mask}
    elif model.main_input_name == "pixel_values":
        size = config.image_size if isinstance(config.image_size, (tuple, list)) else [config.image_size] * 2
        return {"pixel_values": random(2, config.num_channels, *size)}
    elif model.main_input_name == "input_features":
        batch = {"input_features": random(2, config.num_mel_bins, 2 * config.max_source_positions)}
        ids = tokens(text.vocab_size, _TOKENS)
    else:
        return None
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = ids
    return batch | {"labels": ids} if labels else batch


def _of_diffusers(config: Any, random: Any, device: torch.device) -> Mapping[str, Any]:
    size = config.sample_size if isinstance(config.sample_size, (tuple, list)) else [config.sample_size] * 2
    batch = {"sample": random(2, config.in_channels, *size), "timestep": torch.tensor([3, 5], device=device)}
    width = getattr(config, "cross_attention_dim", None)
    return batch if width is None else batch | {"encoder_hidden_states": random(2, 5, width)}
