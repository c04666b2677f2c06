"""Small models of other tasks than causal text: of transformers and diffusers, and plain torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

_SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "embedding_size", "projection_dim"), 32),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "hidden_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "encoder_layers", "decoder_layers", "num_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "n_heads", "encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("num_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "image_size"), 16),
    "num_decoder_layers": 1,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "patch_size": 8,
}
_WHISPER = {"max_source_positions": 8, "max_target_positions": 8, "num_mel_bins": 8, "decoder_start_token_id": 1}
_WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "suppress_tokens": None}
_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
_TOWERS = {
    "text_config": _TOWER | {"vocab_size": 99, "max_position_embeddings": 16, "projection_size": 32, "eos_token_id": 2},
    "vision_config": _TOWER | {"image_size": 16, "patch_size": 8},
}
_SEGFORMER = {"hidden_sizes": [16, 16, 16, 16], "depths": [1] * 4, "num_attention_heads": [1] * 4}
_SEGFORMER |= {"sr_ratios": [2, 2, 1, 1], "decoder_hidden_size": 16}
_SOUND = {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 4}
_SOUND |= {"num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}

# Models whose sample is made from their configuration.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "BertForMultipleChoice": {},
    "BertForQuestionAnswering": {},
    "BertForTokenClassification": {},
    "BertForNextSentencePrediction": {},
    "RobertaForMaskedLM": {},
    "AlbertForMaskedLM": {},
    "ElectraForPreTraining": {},
    "DistilBertForSequenceClassification": {},
    "DebertaV2ForMaskedLM": {},
    "LayoutLMForTokenClassification": {"max_2d_position_embeddings": 16},
    "LlamaForSequenceClassification": {"pad_token_id": None},
    "Qwen3ForTokenClassification": {},
    "MixtralForCausalLM": {"output_router_logits": True, "num_local_experts": 2},
    "MambaForCausalLM": {"state_size": 4},
    "T5ForSequenceClassification": {},
    "T5ForConditionalGeneration": {},
    "BartForConditionalGeneration": {},
    "WhisperForConditionalGeneration": _WHISPER,
    "Wav2Vec2ForCTC": _SOUND,
    "SiglipModel": _TOWERS,
    "CLIPModel": _TOWERS,
    "ViTForImageClassification": {},
    "BeitForImageClassification": {},
    "Dinov2ForImageClassification": {},
    "SegformerForSemanticSegmentation": _SEGFORMER,
}
# Those for which no sample is made, or nothing is known.
UNCOMPARED = {"ASTForAudioClassification", "VideoMAEForVideoClassification", "DecisionTransformerModel", "Silent"}
UNKNOWN = {"PatchTSTForPrediction"}


def transformer(name: str) -> Any:
    """A model of transformers in a small configuration."""
    library = importlib.import_module("transformers")
    cls = getattr(library, name)
    known = cls.config_class().to_dict()
    small = {key: value for key, value in _SMALL.items() if isinstance(known.get(key), int)}
    return cls(cls.config_class(**(small | TRANSFORMERS.get(name, {}))))


def _diffuser(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module("diffusers"), name)(**options)


_BLOCKS = {"block_out_channels": (16, 16), "norm_num_groups": 4, "layers_per_block": 1, "sample_size": 8}
_CROSS = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "attention_head_dim": 8}
DIFFUSERS: dict[str, Callable[[], Any]] = {
    "UNet2DConditionModel": _diffuser(
        "UNet2DConditionModel",
        **_BLOCKS,
        **_CROSS,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
    ),
    "SD3Transformer2DModel": _diffuser(
        "SD3Transformer2DModel",
        sample_size=8,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=16,
        in_channels=4,
        out_channels=4,
        pos_embed_max_size=8,
    ),
}


class Sampled(torch.nn.Module):
    """A variational autoencoder: its forward draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 8))
        self.decoder = torch.nn.Linear(4, 8)

    def forward(self, x: Any) -> Any:
        mean, spread = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * spread.exp()
        return {"x": self.decoder(z), "parts": {"mean": mean}}


class Nested(torch.nn.Module):
    """Returns a list of tuples, and takes what comes by position alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(8), torch.nn.RMSNorm(8, eps=1e-6)])

    def forward(self, *given: Any) -> Any:
        return [(norm(x),) for norm, x in zip(self.norms, given, strict=True)]


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.norm = torch.nn.LSTM(8, 8, batch_first=True), torch.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return self.norm(self.cell(x)[0])


class Silent(torch.nn.Module):
    """Returns no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return float(self.norm(x).detach().sum())


class Labelled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = torch.nn.EmbeddingBag(16, 8), torch.nn.LayerNorm(8)

    def forward(self, ids: Any, target: Any) -> Any:
        scores = self.norm(self.words(ids))
        return {"loss": torch.nn.functional.cross_entropy(scores, target), "scores": scores}


def _images() -> Any:
    nn = torch.nn
    norm = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(2))
    return nn.Sequential(norm, nn.LayerNorm(36), nn.Softmax(-1)).train()


_ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
_WORDS = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
# A function that makes the model, and a sample.
PLAIN: dict[str, tuple[Callable[[], Any], Any]] = {
    "encoder": (lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), _WORDS),
    "decoder": (lambda: torch.nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), (_WORDS, _WORDS)),
    "transformer": (lambda: torch.nn.Transformer(16, 2, 1, 1, 32, batch_first=True), (_WORDS, _WORDS)),
    "images": (_images, torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))),
    "Sampled": (Sampled, _ROWS),
    "Nested": (Nested, (_ROWS, _ROWS)),
    "Recurrent": (Recurrent, _WORDS[..., :8]),
    "Labelled": (Labelled, {"ids": torch.arange(8).view(4, 2), "target": torch.arange(4)}),
    "Silent": (Silent, _ROWS),
}


def make(name: str) -> tuple[Any, Any]:
    """A model, and a sample if it needs one."""
    torch.manual_seed(0)
    if name in PLAIN:
        model, sample = PLAIN[name]
        return model(), tree_map(lambda one: one.to(torch.get_default_device()), sample)
    return (DIFFUSERS[name]() if name in DIFFUSERS else transformer(name)), None


NAMES = (*TRANSFORMERS, *sorted((UNCOMPARED | UNKNOWN) - PLAIN.keys()), *DIFFUSERS, *PLAIN)
