"""The norm of heads, their rotation and the write to a paged cache in one launch, compared with three and with torch.

Times are those of one CUDA graph replay, as in ``kv_cache``: all of a call's kernels, and the gaps between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.kv_cache import BLOCK_SIZE, POSITIONS, gpu_us
from benchmarks.norm import FLUSH_BYTES, compiled_for_one_shape, medians_ms
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

Call = Callable[..., Any]

# Heads of query and of key, their width, and the casting: Qwen 3 8B and Gemma 3 4B.
MODELS = {"Qwen 3": (32, 8, 128, "llama"), "Gemma 3": (8, 4, 256, "gemma")}
TOKENS = (1, 8, 64, 512, 2048, 8192)
TRAINED = 8192
EPS = 1e-6


def normed(x: torch.Tensor, weight: torch.Tensor, casting: str) -> torch.Tensor:
    """The modules of transformers."""
    import torch

    wide = x.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    return weight * normal.to(x.dtype) if casting == "llama" else (normal * (1 + weight.float())).to(x.dtype)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Their rotation, by tables of full width."""
    import torch

    first, second = x.chunk(2, -1)
    return x * cos.unsqueeze(-2) + torch.cat([-second, first], -1) * sin.unsqueeze(-2)


def check(functions: dict[str, Call], *given: torch.Tensor) -> None:
    """Raises unless all give the same heads and caches within bfloat16's precision."""
    import torch

    results = []
    for function in functions.values():
        packed, *caches = (tensor.clone() for tensor in given)
        results.append([*function(packed, *caches), *caches])
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=2e-2, atol=5e-2)


def inference(model: str, tokens: int, device: str = "cuda") -> dict[str, Callable[[], object]]:
    """Every contestant's step over views of a packed projection, in bf16, rounded as by transformers."""
    import torch

    from precast import ops
    from precast.ops.norm import rms_norm

    heads, key_heads, width, casting = MODELS[model]
    made = functools.partial(torch.randn, device=device, dtype=torch.bfloat16)
    packed, weights = made(tokens, heads + 2 * key_heads, width), made(2, width).unbind()
    angle = torch.randn(POSITIONS, width // 2, device=device)
    half = [table.bfloat16() for table in (angle.cos(), angle.sin())]
    blocks = max(2 * tokens // BLOCK_SIZE, 64)
    slots = torch.randperm(blocks * BLOCK_SIZE, device=device)[:tokens]
    rows = torch.randint(POSITIONS, (tokens,), device=device)
    pair = made(2, blocks, BLOCK_SIZE, key_heads, width).unbind()
    options: dict[str, Any] = {"eps": EPS, "casting": casting}

    def split(packed: torch.Tensor) -> Any:
        return packed.split((heads, key_heads, key_heads), 1)

    def fused(packed: torch.Tensor, *caches: torch.Tensor) -> Any:
        given = (*split(packed), *weights, *half, *caches, slots)
        return ops.rms_norm_rotary_embedding_and_cache(*given, positions=rows, rounding="each", **options)

    def apart(packed: torch.Tensor, *caches: torch.Tensor) -> Any:
        query, key, value = split(packed)
        query, key = (rms_norm(x, w, **options) for x, w in zip((query, key), weights, strict=True))
        return ops.rotary_embedding_and_cache(query, key, value, *half, *caches, slots, positions=rows)

    def eager(packed: torch.Tensor, *caches: torch.Tensor) -> Any:
        query, key, value = split(packed)
        tables = [torch.cat([table, table], -1)[rows] for table in half]
        query, key = (turned(normed(x, w, casting), *tables) for x, w in zip((query, key), weights, strict=True))
        for cache, one in zip(caches, (key, value), strict=True):
            cache.view(-1, key_heads, width)[slots] = one
        return query, key

    functions: dict[str, Call] = {"precast": fused, "precast, three ops": apart, "torch eager": eager}
    if device == "cuda":
        functions["torch.compile"] = compiled_for_one_shape(eager)
    check(functions, packed, *pair)
    return {name: functools.partial(function, packed, *pair) for name, function in functions.items()}


def training(model: str, tokens: int, device: str = "cuda") -> dict[str, dict[str, Callable[[], object]]]:
    """Forward, and forward with backward, of every contestant."""
    import torch

    from precast import ops
    from precast.ops.norm import rms_norm

    heads, key_heads, width, casting = MODELS[model]
    made = functools.partial(torch.randn, device=device, dtype=torch.bfloat16)
    leaves = [made(1, tokens, heads, width), made(1, tokens, key_heads, width), made(width), made(width)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    angle = torch.randn(tokens, width // 2, device=device)
    whole = [torch.cat([table, table], -1).bfloat16() for table in (angle.cos(), angle.sin())]
    options: dict[str, Any] = {"eps": EPS, "casting": casting}

    def fused(*given: torch.Tensor) -> Any:
        return ops.rms_norm_rotary_embedding(*given, *whole, rounding="each", **options)

    def apart(query: torch.Tensor, key: torch.Tensor, *weights: torch.Tensor) -> Any:
        query, key = (rms_norm(x, w, **options) for x, w in zip((query, key), weights, strict=True))
        return ops.rotary_embedding(query, key, *(table[:, : width // 2] for table in whole))

    def eager(query: torch.Tensor, key: torch.Tensor, *weights: torch.Tensor) -> Any:
        return [turned(normed(x, w, casting), *whole) for x, w in zip((query, key), weights, strict=True)]

    functions: dict[str, Call] = {"precast": fused, "precast, three ops": apart, "torch eager": eager}
    if device == "cuda":
        functions["torch.compile"] = compiled_for_one_shape(eager)
    grads = [torch.randn_like(leaf) for leaf in leaves[:2]]

    def both(function: Call) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(*leaves), leaves, grads)

    def forward(function: Call) -> Callable[[], object]:
        detached = [leaf.detach() for leaf in leaves]
        return lambda: function(*detached)

    return {
        "forward": {name: forward(function) for name, function in functions.items()},
        "forward and backward": {name: both(function) for name, function in functions.items()},
    }


def main() -> Report:
    """Measure every number of tokens of every model."""
    import torch

    title = "Norm of heads, rotary embedding and the write to a paged KV cache on the GPU, bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("norm_rotary", title, skipped="torch sees no NVIDIA GPU")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    found: list[Row] = []

    def add(what: str, times: dict[str, float], unit: str) -> None:
        ours, *peers = times
        found.extend(Row(what, times[ours], unit, peer, times[peer]) for peer in peers)

    for model in MODELS:
        for tokens in TOKENS:
            torch.compiler.reset()  # a fresh compilation for a fixed shape is the best case of torch.compile
            calls = inference(model, tokens)
            add(f"{model}, {tokens} tokens, one launch", {name: gpu_us(call) for name, call in calls.items()}, "us")
        for what, runs in training(model, TRAINED).items():
            add(f"{model}, {TRAINED} tokens, {what}", medians_ms(runs, flush), "ms")
    notes = tuple(f"{name}: {q} query heads and {k} of keys, {w} wide." for name, (q, k, w, _) in MODELS.items())
    return Report("norm_rotary", title, tuple(found), notes=notes)
