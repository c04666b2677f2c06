"""A small random batch for the models of transformers, timm and diffusers, made from what their configuration says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_map

_TOKENS = 12
_PADDED = 4  # of the second sequence
_IMAGE = 64  # where a configuration has no size
_SOUND = 4000
_ONE_LABEL_PER_TOKEN = re.compile(r"ForCausalLM$|LMHeadModel$|ForMaskedLM$|ForConditionalGeneration$")
_LONGEST = ("max_position_embeddings", "max_target_positions", "n_positions")
_CONTEXT = ("cross_attention_dim", "joint_attention_dim", "caption_channels")

Batch = Mapping[str, Any]


def sample(model: Any, count: int = _TOKENS) -> Batch | None:
    """The keyword arguments of a call, two sequences of ``count`` tokens or two images; None for other models."""
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is None:
        return None
    config, draw = getattr(model, "config", None), _Draw(first, torch.Generator("cpu").manual_seed(1))
    if hasattr(model, "main_input_name") and config is not None:
        return _of_transformers(model, config, draw, count)
    if hasattr(model, "pretrained_cfg") or hasattr(model, "default_cfg"):
        cfg = getattr(model, "pretrained_cfg", None) or model.default_cfg
        size = getattr(getattr(model, "patch_embed", None), "img_size", None) or cfg["input_size"][-2:]
        return {"x": draw.numbers(cfg["input_size"][0], *size)}
    if config is not None and hasattr(config, "in_channels"):
        return _of_diffusers(model, config, draw)
    return None


def variants(batch: Batch) -> Iterator[Batch]:
    """The batch, and what a model may take instead: no labels, no images, one row, two choices for each row."""
    yield batch
    for absent in ({"labels"}, {"pixel_values"}, {"labels", "pixel_values"}):
        if absent & batch.keys() and absent < batch.keys():
            yield {name: value for name, value in batch.items() if name not in absent}
    rows = {name: value for name, value in batch.items() if name != "labels"}
    yield {name: value[:1] for name, value in rows.items()}
    yield {name: value.unsqueeze(1).expand(-1, 2, *value.shape[1:]).contiguous() for name, value in rows.items()}


def named(model: Module, given: Any) -> Mapping[Any, Any]:
    """A batch of the caller: a mapping, or what comes by position, by name where the forward has names."""
    if isinstance(given, Mapping):
        return {name: tree_map(_without_history, value) for name, value in given.items()}
    values = tree_map(_without_history, list(given) if isinstance(given, (tuple, list)) else [given])
    try:
        signature = inspect.signature(model.forward)
        bound = signature.bind(*values).arguments
    except (TypeError, ValueError):  # the call will say why
        return dict(enumerate(values))
    unnamed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return dict(enumerate(values)) if any(signature.parameters[name].kind in unnamed for name in bound) else bound


@dataclass(frozen=True)
class _Draw:
    """Random numbers of the device and dtype of a parameter, two of each shape; on every device the same."""

    like: Tensor
    generator: torch.Generator

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn((2, *shape), generator=self.generator, device="cpu").to(self.like)

    def tokens(self, text: Any, count: int) -> Tensor:
        """Sequences that end once: some models look for the one end."""
        ids = torch.randint(0, text.vocab_size, (2, count), generator=self.generator, device="cpu")
        end = _first(text, "eos_token_id")
        if isinstance(end, int) and 1 < end < text.vocab_size:
            ids[ids == end] = 1
            ids[:, -1] = end
        return ids.to(self.like.device)


def _without_history(value: Any) -> Any:
    """A result that can be differentiated, as an input; the hooks on its way here do not fire."""
    is_result = isinstance(value, Tensor) and value.grad_fn is not None
    return value.detach().requires_grad_() if is_result else value


def _of_transformers(model: Any, config: Any, draw: _Draw, count: int) -> Batch | None:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    wrapped = model.get_base_model() if hasattr(model, "get_base_model") else model  # by an adapter of PEFT
    takes, main = inspect.signature(wrapped.forward).parameters, model.main_input_name
    ids = None
    if getattr(text, "vocab_size", None):
        longest = _first(text, *_LONGEST) or 0  # XLNet says -1
        count = count if main == "input_ids" else _TOKENS
        ids = draw.tokens(text, min(count, longest) if longest > 0 else count)
    batch: dict[str, Any] = {}
    if ids is not None and (main == "input_ids" or {"input_ids", "pixel_values"} <= takes.keys()):
        mask = torch.ones_like(ids)
        mask[1, :_PADDED] = 0
        batch = {"input_ids": ids, "attention_mask": mask}
    if "pixel_values" in takes and (main == "pixel_values" or batch):
        batch["pixel_values"] = _image(getattr(config, "vision_config", config), draw)
    elif main == "input_features":
        batch["input_features"] = draw.numbers(config.num_mel_bins, 2 * config.max_source_positions)
    elif main == "input_values":
        batch["input_values"] = draw.numbers(_SOUND)
    if not batch:
        return None
    if ids is not None and getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        batch["decoder_input_ids"] = ids
    labels = ids is not None and _ONE_LABEL_PER_TOKEN.search(type(wrapped).__name__)
    return batch | {"labels": ids} if labels else batch


def _of_diffusers(model: Any, config: Any, draw: _Draw) -> Batch | None:
    takes = inspect.signature(model.forward).parameters
    name = next((one for one in ("sample", "hidden_states") if one in takes), None)
    if name is None:
        return None
    batch = {name: _image(config, draw, "sample_size")}
    if "timestep" in takes:
        batch["timestep"] = torch.tensor([3, 5], device=draw.like.device)
    width, pooled = _first(config, *_CONTEXT), _first(config, "pooled_projection_dim")
    if "encoder_hidden_states" in takes and width is not None:
        batch["encoder_hidden_states"] = draw.numbers(5, width)
    if "pooled_projections" in takes and pooled is not None:
        batch["pooled_projections"] = draw.numbers(pooled)
    return batch


def _image(config: Any, draw: _Draw, name: str = "image_size") -> Tensor:
    size = _first(config, name) or _IMAGE
    sides = size if isinstance(size, (tuple, list)) else (size, size)
    return draw.numbers(_first(config, "num_channels", "in_channels") or 3, *sides)


def _first(config: Any, *names: str) -> Any:
    """The first of some attributes that a configuration has."""
    return next((found for name in names if (found := getattr(config, name, None)) is not None), None)
