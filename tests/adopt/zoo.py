"""Models of transformers, timm and diffusers in small random configurations. Nothing is downloaded."""

from __future__ import annotations

import importlib
import linecache
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_TEXT = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}
_EXPERTS = {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.0}
_VISION = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}


def _transformers(model: str, config: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        library = importlib.import_module("transformers")
        return getattr(library, model)(getattr(library, config)(**options))

    return make


def _timm(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: importlib.import_module("timm").create_model(name, pretrained=False, num_classes=10, **options)


def _unet() -> Any:
    return importlib.import_module("diffusers").UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=8,
    )


MODELS: dict[str, Callable[[], Any]] = {
    "llama": _transformers("LlamaForCausalLM", "LlamaConfig", **_TEXT),
    "qwen3": _transformers("Qwen3ForCausalLM", "Qwen3Config", **_TEXT),
    "qwen3_moe": _transformers(
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig", **_TEXT, **_EXPERTS, num_experts=4, moe_intermediate_size=32
    ),
    "gemma3": _transformers("Gemma3ForCausalLM", "Gemma3TextConfig", **_TEXT, sliding_window=8),
    "gpt_oss": _transformers("GptOssForCausalLM", "GptOssConfig", **_TEXT, **_EXPERTS, num_local_experts=4),
    "gpt2": _transformers(
        "GPT2LMHeadModel",
        "GPT2Config",
        vocab_size=97,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=None,
        eos_token_id=None,
    ),
    "bert": _transformers("BertForMaskedLM", "BertConfig", vocab_size=97, **_VISION),
    "vit": _transformers("ViTForImageClassification", "ViTConfig", **_VISION, image_size=16, patch_size=8),
    "whisper": _transformers(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        vocab_size=97,
        d_model=64,
        num_mel_bins=8,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_source_positions=12,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
    "mamba2": _transformers(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        vocab_size=97,
        hidden_size=64,
        num_hidden_layers=2,
        state_size=16,
        expand=2,
        head_dim=32,
        num_heads=4,
        n_groups=1,
        chunk_size=8,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    ),
    "timm_vit": _timm("vit_tiny_patch16_224", img_size=32, embed_dim=64, depth=2, num_heads=4),
    "timm_convnext": _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(16, 16, 32, 32)),
    "unet": _unet,
}


def ids() -> torch.Tensor:
    """Two sequences of tokens for the language models."""
    return torch.arange(24).view(2, 12)


def make(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model with weights from a fixed seed; the biases and norms too, so that none is without effect."""
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape).to(dtype) * 0.05)
    return model


def written(folder: Path, signature: str, body: str) -> Any:
    """A function in a file of its own; it is read, not called."""
    path = folder / "written.py"
    path.write_text(f"def {signature}:\n" + "\n".join(f"    {line}" for line in body.splitlines()) + "\n")
    linecache.checkcache(str(path))
    return runpy.run_path(str(path))[signature.partition("(")[0]]
