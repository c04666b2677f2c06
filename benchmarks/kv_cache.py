"""A decoding step's rotation and write to the paged cache: GPU time and host time, compared with torch's own.

Both are as short as a launch, so a share of bandwidth would mean nothing. The GPU time is that of one CUDA graph
replay, the closest to bare kernels: all of a call's kernels, and the gaps between them.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

TOKENS = (1, 4, 16, 64, 4096)  # in a decoding step, one per sequence; the last number is a prompt
QUERY_HEADS, HEADS, WIDTH, BLOCK_SIZE, POSITIONS = 32, 8, 128, 16, 8192
IN_GRAPH, REPLAYS = 20, 30  # calls in one graph, and replays
CALLS, ROUNDS = 200, 9
TARGET = ">= 1.5"


def contestants(tokens: int, device: str = "cuda") -> dict[str, Callable[[], object]]:
    """Every contestant's step over views of a packed projection, in bf16. The tables are float32."""
    import torch

    import precast

    made = functools.partial(torch.randn, device=device, dtype=torch.bfloat16)
    packed = made(tokens, QUERY_HEADS + 2 * HEADS, WIDTH)
    cos, sin = (torch.randn(POSITIONS, WIDTH // 2, device=device) for _ in range(2))
    blocks = max(2 * tokens // BLOCK_SIZE, 64)
    slots = torch.randperm(blocks * BLOCK_SIZE, device=device)[:tokens]
    positions = torch.randint(POSITIONS, (tokens,), device=device)
    pair = made(2, blocks, BLOCK_SIZE, HEADS, WIDTH).unbind()

    def ours(packed: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        query, key, value = packed.split((QUERY_HEADS, HEADS, HEADS), 1)
        precast.ops.rotary_embedding_and_cache(query, key, value, cos, sin, keys, values, slots, positions=positions)

    def theirs(packed: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """A torch user's code: rotates the halves in float32, then assigns to each cache by index."""
        heads = packed[:, : QUERY_HEADS + HEADS]
        first, second = heads.float().chunk(2, -1)
        c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
        heads.copy_(torch.cat((first * c - second * s, second * c + first * s), -1))
        for cache, rows in zip((keys, values), (packed[:, QUERY_HEADS:-HEADS], packed[:, -HEADS:]), strict=True):
            cache.view(-1, HEADS, WIDTH)[slots] = rows

    functions = {"precast": ours, "torch eager": theirs, "torch.compile": torch.compile(theirs, dynamic=False)}
    check(functions, packed, pair)
    return {name: functools.partial(function, packed, *pair) for name, function in functions.items()}


def check(functions: dict[str, Callable[..., None]], packed: torch.Tensor, pair: tuple[torch.Tensor, ...]) -> None:
    """Raises unless all write the same values within bfloat16's precision."""
    import torch

    results = []
    for function in functions.values():
        given = [t.clone() for t in (packed, *pair)]
        function(*given)
        results.append(given)
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=2e-2, atol=5e-2)


def gpu_us(call: Callable[[], object]) -> float:
    """The GPU time of one call, in a graph of many."""
    import torch

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            call()
    graph.replay()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPLAYS)]
    for begin, end in pairs:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(begin.elapsed_time(end)) for begin, end in pairs) * 1e3 / IN_GRAPH


def wall_us(call: Callable[[], object]) -> float:
    """The time per call in a loop: the host's, or the GPU's if that is longer."""
    import torch

    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / CALLS)
    return statistics.median(times) * 1e6


def rows(tokens: int) -> Iterator[Row]:
    """Both times for one number of tokens."""
    calls = contestants(tokens)
    for what, measure in (("GPU time", gpu_us), ("wall time of a call", wall_us)):
        found = {name: measure(call) for name, call in calls.items()}
        for peer in ("torch eager", "torch.compile"):
            text = f"rotary and KV write, {tokens} tokens, {what}"
            yield Row(text, found["precast"], "us", peer, found[peer], target=TARGET)


def main() -> Report:
    """Measure every number of tokens."""
    import torch

    title = "Rotary embedding and the write to a paged KV cache on the GPU, bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("kv_cache", title, skipped="torch sees no NVIDIA GPU")
    found: list[Row] = []
    for tokens in TOKENS:
        torch.compiler.reset()  # a fresh compilation for a fixed shape is the best case of torch.compile
        found += rows(tokens)
    least = gpu_us(torch.zeros(8, device="cuda").zero_)
    notes = (
        f"{QUERY_HEADS} query heads and {HEADS} of keys and values, {WIDTH} wide, blocks of {BLOCK_SIZE}.",
        f"GPU time: one of {IN_GRAPH} calls in a CUDA graph, where the least kernel takes {least:.2f} us.",
    )
    return Report("kv_cache", title, tuple(found), notes=notes)
