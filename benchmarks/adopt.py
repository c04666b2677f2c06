"""Tokens per second and peak memory of random parameters: trained, read and decoding, on one GPU.

Seven ways to run the same model: untouched, with FLA and causal-conv1d, Liger-Kernel, torch.compile, adopted, adopted
and torch.compile, adopted without logits. All but the second run as where those packages are not installed. Each is a
process of its own, because Liger-Kernel patches classes. ``python -m benchmarks.adopt --json adopt.json`` needs torch,
transformers, an NVIDIA GPU and under five minutes; ``--only adopted`` runs some, ``--model qwen3`` takes another of
``MODELS``, and ``--tiny`` tries the program on a CPU with a small model.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WAYS = ("untouched", "packages", "liger", "compile", "adopted", "adopted and compile", "adopted without logits")
# https://huggingface.co/meta-llama/Llama-3.2-1B and https://huggingface.co/Qwen/Qwen3-1.7B, config.json
_BOTH = {"hidden_size": 2048, "num_key_value_heads": 8, "tie_word_embeddings": True, "max_position_embeddings": 4096}
_LLAMA = {"vocab_size": 128256, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
_QWEN3 = {"vocab_size": 151936, "intermediate_size": 6144, "num_hidden_layers": 28, "head_dim": 128}
# Layers of Qwen3.5 0.8B, Kimi Linear 48B and Nemotron-H 4B, of which the last two have fewer and fewer experts.
_QWEN3_5: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
}
_QWEN3_5 |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "linear_num_value_heads": 16}
_KIMI: dict[str, Any] = {"vocab_size": 65536, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 8}
_KIMI |= {"moe_intermediate_size": 1024, "num_experts": 8, "num_experts_per_token": 2, "kv_lora_rank": 512}
_KIMI |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LINEAR: dict[str, Any] = {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}
_LINEAR |= {"kda_layers": [1, 2, 3, 5, 6, 7], "full_attn_layers": [4, 8]}
_NEMOTRON: dict[str, Any] = {
    "vocab_size": 131072,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
}
_NEMOTRON |= {"layers_block_type": ["mamba", "mlp"] * 5 + ["attention", "mlp"], "mamba_num_heads": 96}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": ("Qwen3_5", _QWEN3_5),
    "kimi_linear": ("KimiLinear", {**_KIMI, "linear_attn_config": _LINEAR}),
    "nemotron_h": ("NemotronH", _NEMOTRON),
    "llama": ("Llama", {**_BOTH, **_LLAMA, "num_attention_heads": 32}),
    "qwen3": ("Qwen3", {**_BOTH, **_QWEN3, "num_attention_heads": 16}),
}
TINY: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 16,
}
TINY_OF: dict[str, dict[str, Any]] = {
    "qwen3_5": {"layer_types": ["linear_attention", "full_attention"]},
    "kimi_linear": {"linear_attn_config": {**_LINEAR, "num_heads": 2, "kda_layers": [1], "full_attn_layers": [2]}},
    "nemotron_h": {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 8, "mamba_head_dim": 16},
}
BATCH, STEPS = 4, 8
PACKAGES = ("causal_conv1d", "fla", "mamba_ssm")
SEQUENCES, PROMPT = 8, 128


@dataclasses.dataclass(frozen=True)
class Setting:
    """What every way runs."""

    model: str
    tiny: bool

    @property
    def device(self) -> str:
        """A tiny model runs on the CPU."""
        return "cpu" if self.tiny else "cuda"

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the model."""
        return {**MODELS[self.model][1], **(TINY | TINY_OF.get(self.model, {}) if self.tiny else {})}

    @property
    def length(self) -> int:
        """The tokens of a sequence in training."""
        return 32 if self.tiny else 2048

    @property
    def new(self) -> int:
        """The tokens that each sequence gets."""
        return 8 if self.tiny else 128


@dataclasses.dataclass(frozen=True)
class Result:
    """Of one way to run the model. ``report`` is the certificate's text, of the adopted ones."""

    way: str
    train_tokens_s: float
    train_peak_gb: float
    prefill_tokens_s: float
    losses: tuple[float, ...]
    decode_tokens_s: float
    decode_peak_gb: float
    first_step_s: float
    report: str


def build(of: Setting) -> Any:
    """The model, the same in every process."""
    transformers = importlib.import_module("transformers")
    name = MODELS[of.model][0]
    kind = f"{name}TextConfig" if hasattr(transformers, f"{name}TextConfig") else f"{name}Config"
    config = getattr(transformers, kind)(**of.config)
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(of.device):
            return getattr(transformers, f"{name}ForCausalLM")(config)
    finally:
        torch.set_default_dtype(default)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until the GPU is done, and the result."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
    started = time.perf_counter()
    result = function()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - started, result


def peak_of(function: Callable[[], Any]) -> tuple[float, Any, float]:
    """Seconds, the result, and the peak of the GPU's memory in GB."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    seconds, result = timed(function)
    return seconds, result, torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0


def train(of: Setting, model: Any, forward: Callable[..., Any]) -> tuple[float, float, list[float], float]:
    """Tokens per second of whole steps, peak GB, the losses, and the seconds of the first step."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator(of.device).manual_seed(1)
    ids = torch.randint(0, of.config["vocab_size"], (BATCH, of.length), device=of.device, generator=generator)

    def step() -> torch.Tensor:
        loss: torch.Tensor = forward(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    first, loss = timed(step)
    losses = [loss, step()]
    seconds, more, peak = peak_of(lambda: [step() for _ in range(STEPS)])
    return BATCH * of.length * STEPS / seconds, peak, [float(one) for one in [*losses, *more]], first


def prefill(of: Setting, model: Any, forward: Callable[..., Any]) -> float:
    """Tokens per second of a forward without gradients."""
    model.eval()
    ids = torch.randint(0, of.config["vocab_size"], (BATCH, of.length), device=of.device)

    def read() -> Any:
        return forward(input_ids=ids, use_cache=False, logits_to_keep=1)

    with torch.no_grad():
        read()
        seconds, _ = timed(lambda: [read() for _ in range(STEPS)])
    return BATCH * of.length * STEPS / seconds


def decode(of: Setting, model: Any, compiled: bool) -> tuple[float, float]:
    """Tokens per second of greedy generation, and peak GB. A static cache is what lets generate() compile."""
    model.eval()
    generator = torch.Generator(of.device).manual_seed(2)
    ids = torch.randint(0, of.config["vocab_size"], (SEQUENCES, PROMPT), device=of.device, generator=generator)
    options: dict[str, Any] = {"max_new_tokens": of.new, "min_new_tokens": of.new}
    options |= {"do_sample": False, "pad_token_id": 0}
    options |= {"cache_implementation": "static"} if compiled else {}

    def generate() -> Any:
        return model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    for _ in range(2 if compiled else 1):
        generate()
    seconds, _, peak = peak_of(generate)
    return SEQUENCES * of.new / seconds, peak


def run(way: str, of: Setting) -> Result:
    """Measure one way in this process."""
    if way != "packages":  # installed or not
        sys.modules.update(dict.fromkeys(PACKAGES))  # type: ignore[arg-type]
    if way == "liger":
        getattr(importlib.import_module("liger_kernel.transformers"), f"apply_liger_kernel_to_{of.model}")()
    model, report = build(of), ""
    if way.startswith("adopted"):
        precast = importlib.import_module("precast")
        certificate = precast.adopt(model, logits=way != "adopted without logits")
        if certificate.undone:
            raise SystemExit(f"{way}: {certificate}")
        report = str(certificate)
        torch.cuda.empty_cache()
    compiled = way.endswith("compile")
    forward = torch.compile(model) if compiled else model
    speed, peak, losses, first = train(of, model, forward)
    model.zero_grad(set_to_none=True)
    read = prefill(of, model, forward)
    torch.cuda.empty_cache()
    decoded, decode_peak = decode(of, model, compiled)
    return Result(way, speed, peak, read, tuple(losses), decoded, decode_peak, first, report)


def table(results: list[Result]) -> str:
    """The results as Markdown."""
    head = "| | training, tokens/s | peak GB | reading | decoding | peak GB | first step, s | last loss |"
    rows = [
        f"| {r.way} | {r.train_tokens_s:,.0f} | {r.train_peak_gb:.1f} | {r.prefill_tokens_s:,.0f} | "
        f"{r.decode_tokens_s:,.0f} | {r.decode_peak_gb:.1f} | {r.first_step_s:.1f} | {r.losses[-1]:.4f} |"
        for r in results
    ]
    return "\n".join([head, "| --- |" + " ---: |" * 7, *rows])


def main() -> int:
    """Run the ways in turn, each in a child, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=WAYS, help="one way; may be given several times")
    parser.add_argument("--model", choices=MODELS, default="llama", help="the model; default: llama")
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU, to try the program")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    of = Setting(options.model, options.tiny)
    if options.child:
        sys.stdout.write(json.dumps(dataclasses.asdict(run(options.child, of))) + "\n")
        return 0
    results: list[Result] = []
    name = "cpu" if of.tiny else torch.cuda.get_device_name()
    for way in options.only or WAYS:
        needed = {"liger": ("liger_kernel",), "packages": PACKAGES}.get(way, ())
        if missing := [package for package in needed if importlib.util.find_spec(package) is None]:
            sys.stderr.write(f"{way}: no package {missing[0]}\n")
            continue
        started = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.adopt", "--child", way, "--model", of.model]
        command += ["--tiny"] * of.tiny
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if child.returncode:
            sys.stderr.write(f"{way}: exit status {child.returncode}\n")
            continue
        results.append(Result(**json.loads(child.stdout.splitlines()[-1])))
        sys.stderr.write(f"{way}: {time.monotonic() - started:.0f} s\n")
        facts = {"device": name, "torch": torch.__version__, "size": of.config}
        if options.json:  # after each, so that a run that is cut off leaves what it has
            rows = [dataclasses.asdict(one) for one in results]
            options.json.write_text(json.dumps({**facts, "results": rows}, indent=1) + "\n", encoding="utf-8")
    adopted = next((one.report for one in results if one.report), "")
    sys.stdout.write(f"{adopted}\n\n{name}, torch {torch.__version__}\n\n{table(results)}\n")
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
