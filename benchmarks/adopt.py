"""Tokens per second and peak memory of a Llama of 1.2 billion random parameters, trained and decoding, on one GPU.

Five ways to run the same model: untouched, Liger-Kernel, torch.compile, adopted, adopted and torch.compile. Each is a
process of its own, because Liger-Kernel patches classes. ``python -m benchmarks.adopt --json adopt.json`` needs torch,
transformers, an NVIDIA GPU and under four minutes; ``--only adopted`` runs some.
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

WAYS = ("untouched", "liger", "compile", "adopted", "adopted and compile")
# Llama 3.2 1B: https://huggingface.co/meta-llama/Llama-3.2-1B/blob/main/config.json
SIZE: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
BATCH, LENGTH, STEPS = 4, 2048, 8
SEQUENCES, PROMPT, NEW = 8, 128, 128


@dataclasses.dataclass(frozen=True)
class Result:
    """Of one way to run the model. ``report`` is the certificate's text, of the adopted ones."""

    way: str
    train_tokens_s: float
    train_peak_gb: float
    losses: tuple[float, ...]
    decode_tokens_s: float
    decode_peak_gb: float
    first_step_s: float
    report: str


def build() -> Any:
    """The model, the same in every process."""
    transformers = importlib.import_module("transformers")
    config = transformers.LlamaConfig(**SIZE, max_position_embeddings=4096)
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return transformers.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(default)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until the GPU is done, and the result."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    result = function()
    torch.cuda.synchronize()
    return time.perf_counter() - started, result


def train(model: Any, forward: Callable[..., Any]) -> tuple[float, float, list[float], float]:
    """Tokens per second of whole steps, peak GB, the losses, and the seconds of the first step."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator("cuda").manual_seed(1)
    ids = torch.randint(0, SIZE["vocab_size"], (BATCH, LENGTH), device="cuda", generator=generator)

    def step() -> torch.Tensor:
        loss: torch.Tensor = forward(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    first, loss = timed(step)
    losses = [loss, step()]
    torch.cuda.reset_peak_memory_stats()
    seconds, more = timed(lambda: [step() for _ in range(STEPS)])
    peak = torch.cuda.max_memory_allocated() / 1e9
    return BATCH * LENGTH * STEPS / seconds, peak, [float(one) for one in [*losses, *more]], first


def decode(model: Any, compiled: bool) -> tuple[float, float]:
    """Tokens per second of greedy generation, and peak GB. A static cache is what lets generate() compile."""
    model.eval()
    generator = torch.Generator("cuda").manual_seed(2)
    ids = torch.randint(0, SIZE["vocab_size"], (SEQUENCES, PROMPT), device="cuda", generator=generator)
    options: dict[str, Any] = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    options |= {"cache_implementation": "static"} if compiled else {}

    def generate() -> Any:
        return model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    for _ in range(2 if compiled else 1):
        generate()
    torch.cuda.reset_peak_memory_stats()
    seconds, _ = timed(generate)
    return SEQUENCES * NEW / seconds, torch.cuda.max_memory_allocated() / 1e9


def run(way: str) -> Result:
    """Measure one way in this process."""
    if way == "liger":
        importlib.import_module("liger_kernel.transformers").apply_liger_kernel_to_llama()
    model, report = build(), ""
    if way.startswith("adopted"):
        precast = importlib.import_module("precast")
        certificate = precast.adopt(model)
        if certificate.undone:
            raise SystemExit(f"{way}: {certificate}")
        report = str(certificate)
        torch.cuda.empty_cache()
    compiled = way.endswith("compile")
    speed, peak, losses, first = train(model, torch.compile(model) if compiled else model)
    model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    decoded, decode_peak = decode(model, compiled)
    return Result(way, speed, peak, tuple(losses), decoded, decode_peak, first, report)


def table(results: list[Result]) -> str:
    """The results as Markdown."""
    head = "| | training, tokens/s | peak GB | decoding, tokens/s | peak GB | first step, s | last loss |"
    rows = [
        f"| {r.way} | {r.train_tokens_s:,.0f} | {r.train_peak_gb:.1f} | {r.decode_tokens_s:,.0f} | "
        f"{r.decode_peak_gb:.1f} | {r.first_step_s:.1f} | {r.losses[-1]:.4f} |"
        for r in results
    ]
    return "\n".join([head, "| --- |" + " ---: |" * 6, *rows])


def main() -> int:
    """Run the ways in turn, each in a child, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=WAYS, help="one way; may be given several times")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.stdout.write(json.dumps(dataclasses.asdict(run(options.child))) + "\n")
        return 0
    results: list[Result] = []
    for way in options.only or WAYS:
        if way == "liger" and importlib.util.find_spec("liger_kernel") is None:
            sys.stderr.write("liger: no package liger_kernel\n")
            continue
        started = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.adopt", "--child", way]
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if child.returncode:
            sys.stderr.write(f"{way}: exit status {child.returncode}\n")
            continue
        results.append(Result(**json.loads(child.stdout.splitlines()[-1])))
        sys.stderr.write(f"{way}: {time.monotonic() - started:.0f} s\n")
        facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "size": SIZE}
        if options.json:  # after each, so that a run that is cut off leaves what it has
            rows = [dataclasses.asdict(one) for one in results]
            options.json.write_text(json.dumps({**facts, "results": rows}, indent=1) + "\n", encoding="utf-8")
    adopted = next((one.report for one in results if one.report), "")
    sys.stdout.write(f"{adopted}\n\n{torch.cuda.get_device_name()}, torch {torch.__version__}\n\n{table(results)}\n")
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
