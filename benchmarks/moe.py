"""Mixture of experts on the GPU: routing of a decoding step in microseconds, compared with torch's own.

A step routes a few tokens, so its time is that of a launch or two. The GPU time is that of one CUDA graph replay. The
movement of many rows is part of ``python -m benchmarks.gpu``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.kv_cache import gpu_us
from benchmarks.norm import Compile, compiled_for_one_shape
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

Run = Callable[[], Any]

TOKENS = (1, 16, 64)
EXPERTS, K, GROUPS, KEPT, BLOCK = 256, 8, 8, 4, 64
GATING_US, TARGET = 6.0, ">= 1.0"
SHAPES = ((16384, 4096, 1), (16384, 4096, 8), (16, 7168, 1), (16, 7168, 8))  # tokens, width, experts for each token


def gating_of_torch(logits: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """DeepSeek-V3's gating as models write it."""
    import torch

    scores = logits.float().sigmoid()
    choice = scores + bias
    grouped = choice.view(-1, GROUPS, EXPERTS // GROUPS)
    of_groups = grouped.topk(2, -1)[0].sum(-1)
    kept = torch.zeros_like(of_groups).scatter(1, of_groups.topk(KEPT, -1)[1], 1.0)
    left = grouped.masked_fill(kept.unsqueeze(-1) == 0, -torch.inf).flatten(1)
    ids = left.topk(K, -1)[1]
    weights = scores.gather(1, ids)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5, ids


def alignment_of_torch(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``moe_align_block_size`` in plain torch."""
    from precast.ops.moe import reference

    return reference.moe_align_block_size(ids, EXPERTS, BLOCK)


def routing(tokens: int, compiled: Compile) -> dict[str, dict[str, Run]]:
    """The runs of all contestants: the gating alone, then with the alignment to blocks."""
    import torch

    from precast import ops

    logits = torch.randn(tokens, EXPERTS, device="cuda", dtype=torch.bfloat16)
    bias = 0.1 * torch.randn(EXPERTS, device="cuda")

    def gating() -> tuple[torch.Tensor, torch.Tensor]:
        options = {"bias": bias, "groups": GROUPS, "kept_groups": KEPT}
        found: tuple[torch.Tensor, torch.Tensor] = ops.topk_sigmoid(logits, K, renormalize=True, scale=2.5, **options)
        return found

    def aligned() -> tuple[torch.Tensor, ...]:
        weights, ids = gating()
        return weights, ids, *ops.moe_align_block_size(ids, EXPERTS, BLOCK)

    def theirs(logits: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights, ids = gating_of_torch(logits, bias)
        return weights, ids, *alignment_of_torch(ids)

    found: dict[str, dict[str, Run]] = {}
    for name, ours, function in (("gating", gating, gating_of_torch), ("gating and alignment", aligned, theirs)):
        others = {"torch eager": function, "torch.compile": compiled(function)}
        found[name] = {"precast": ours, **{peer: functools.partial(f, logits, bias) for peer, f in others.items()}}
        check(found[name])
    return found


def check(runs: dict[str, Run]) -> None:
    """Raises unless all agree."""
    import torch

    wanted = runs["torch eager"]()
    for run in runs.values():
        for one, other in zip(run(), wanted, strict=True):
            torch.testing.assert_close(one, other.to(one.dtype), rtol=1e-5, atol=1e-6)


def movement(shape: tuple[int, int, int], compiled: Compile) -> Iterator[tuple[str, int, dict[str, Run]]]:
    """Rows to sorted places and back: name, bytes that must be moved, and every contestant's run."""
    import torch

    from precast import ops

    tokens, width, k = shape
    x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
    logits = torch.randn(tokens, EXPERTS, device="cuda")
    weights, ids = ops.topk_softmax(logits, k, renormalize=True)
    rows, positions, _ = ops.moe_permute(x, ids, EXPERTS)
    order = torch.argsort(ids.flatten(), stable=True)
    places = positions.long()
    moved = x.nbytes + rows.nbytes

    def permute(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return x[torch.argsort(ids.flatten(), stable=True) // k]

    def spread(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        return x[order // k]

    def unpermute(rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (rows[places] * weights.unsqueeze(-1)).sum(1).to(rows.dtype)

    def runs(ours: Run, function: Callable[..., Any], *args: torch.Tensor) -> dict[str, Run]:
        peers = {"torch eager": function, "torch.compile": compiled(function)}
        return {"precast": ours, **{name: functools.partial(peer, *args) for name, peer in peers.items()}}

    yield "moe_permute", moved, runs(lambda: ops.moe_permute(x, ids, EXPERTS)[0], permute, x, ids)
    raw = torch.ops.precast.moe_permute_rows
    yield "moe_permute_rows", moved, runs(lambda: raw(x, positions, tokens * k, True), spread, x, order)
    yield (
        "moe_unpermute",
        moved,
        runs(lambda: ops.moe_unpermute(rows, positions, weights), unpermute, rows, places, weights),
    )
    leaves = [rows.detach().requires_grad_(), weights.detach().requires_grad_()]
    grad = torch.randn_like(x)
    backward: dict[str, Run] = {}
    forward: dict[str, Run] = {
        "precast": lambda: ops.moe_unpermute(leaves[0], positions, leaves[1]),
        "torch eager": functools.partial(unpermute, leaves[0], places, leaves[1]),
        "torch.compile": functools.partial(compiled(unpermute), leaves[0], places, leaves[1]),
    }
    for name, run in forward.items():
        backward[name] = functools.partial(torch.autograd.grad, run(), leaves, grad, retain_graph=True)
    yield "moe_unpermute backward", moved + rows.nbytes, backward


def rows(tokens: int) -> Iterator[Row]:
    """The times for one number of tokens."""
    for what, runs in routing(tokens, compiled_for_one_shape).items():
        found = {name: gpu_us(run) for name, run in runs.items()}
        text = f"{what}, {tokens} tokens, top {K} of {EXPERTS} in {GROUPS} groups"
        for peer in ("torch eager", "torch.compile"):
            yield Row(text, found["precast"], "us", peer, found[peer], target=TARGET)


def main() -> Report:
    """Measure every number of tokens."""
    import torch

    title = "Routing of a mixture of experts on the GPU, bf16 logits"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("moe", title, skipped="torch sees no NVIDIA GPU")
    found: list[Row] = []
    for tokens in TOKENS:
        torch.compiler.reset()
        found += rows(tokens)
    least = gpu_us(torch.zeros(8, device="cuda").zero_)
    notes = (
        f"GPU time of a call in a CUDA graph, where the least kernel takes {least:.2f} us.",
        f"At most {GATING_US:.0f} us are asked of the gating.",
    )
    return Report("moe", title, tuple(found), notes=notes)
