"""Decode attention and gating on the CPU compared with torch eager. The table shows where torch is faster.

The peer of decode attention is ``scaled_dot_product_attention`` on caches that were gathered beforehand: of one length,
or padded with a mask. No time includes the gathering.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from benchmarks.processes import OURS, Found, compare, medians, rows
from benchmarks.report import Report

if TYPE_CHECKING:
    import torch

MODULE = "benchmarks.cpu_serving"
SDPA, EAGER = "torch SDPA", "torch eager"
BLOCK_SIZE, LONGEST = 16, 4000
HEADS = ((8, 8, 64), (32, 8, 128), (16, 1, 80), (32, 8, 64), (8, 8, 128), (16, 1, 256))  # queries, keys, width
LENGTHS = {  # by name
    "1x100": [100],
    "1x4000": [LONGEST],
    "4x512": [512] * 4,
    "32x64": [64] * 32,
    "8 of 1 to 2000": [1, 3, 17, 130, 400, 777, 1500, 2000],
}
# Each kind of heads and each kind of lengths in every dtype, not all pairs.
PAIRS = [(0, "1x100"), (0, "4x512"), (1, "1x4000"), (1, "4x512"), (1, "8 of 1 to 2000"), (2, "32x64")]
PAIRS += [(3, "32x64"), (3, "1x100"), (4, "1x4000"), (4, "8 of 1 to 2000"), (5, "1x4000")]
DTYPES = ("float32", "bfloat16", "float16")
TOKENS, CHOICES = (1, 64, 4096), ((8, 2), (60, 4), (64, 6), (128, 8), (256, 8), (256, 1))  # experts and k
Contestants = dict[str, Callable[[], object]]


def decode(heads: tuple[int, int, int], lengths: list[int], kind: str) -> Contestants:
    """Both on the same numbers; the blocks are in random order."""
    import torch

    from precast.ops import paged_decode_attention

    of_query, of_keys, width = heads
    dtype = getattr(torch, kind)
    columns = -(-max(lengths) // BLOCK_SIZE)
    tables = torch.randperm(columns * len(lengths)).view(len(lengths), columns)
    query = torch.randn(len(lengths), of_query, width).to(dtype)
    keys, values = (torch.randn(tables.numel(), BLOCK_SIZE, of_keys, width).to(dtype) for _ in range(2))

    def gathered(cache: torch.Tensor) -> torch.Tensor:
        return cache[tables].flatten(1, 2)[:, : max(lengths)].transpose(1, 2).contiguous()

    key, value = gathered(keys), gathered(values)
    counts = torch.tensor(lengths)
    mask = (torch.arange(max(lengths)) < counts[:, None])[:, None, None] if len(set(lengths)) > 1 else None
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return {
        OURS: lambda: paged_decode_attention(query, keys, values, tables, counts),
        SDPA: lambda: sdpa(query.unsqueeze(2), key, value, attn_mask=mask, enable_gqa=of_query > of_keys).squeeze(2),
    }


def gating(tokens: int, experts: int, k: int, kind: str) -> Contestants:
    """Top-k of a softmax, in float32 as models write it."""
    import torch

    from precast.ops import topk_softmax

    logits = torch.randn(tokens, experts).to(getattr(torch, kind))
    return {
        OURS: lambda: topk_softmax(logits, k),
        EAGER: lambda: torch.topk(torch.softmax(logits, -1, dtype=torch.float32), k, -1),
    }


def cases() -> Iterator[tuple[str, Callable[[], Contestants]]]:
    """The name of each case, and what makes its contestants."""
    for kind, (index, lengths) in itertools.product(DTYPES, PAIRS):
        heads = HEADS[index]
        name = f"decode {lengths}, {heads[0]}/{heads[1]} heads of {heads[2]}, {kind}"
        yield name, functools.partial(decode, heads, LENGTHS[lengths], kind)
    for kind, tokens, (experts, k) in itertools.product(DTYPES[:2], TOKENS, CHOICES):
        yield f"topk_softmax {tokens}x{experts}, k {k}, {kind}", functools.partial(gating, tokens, experts, k, kind)


def measure() -> Found:
    """Every case."""
    import torch

    torch.manual_seed(0)
    found: Found = {}
    with torch.no_grad():
        for name, contestants in cases():
            found[name] = compare(contestants(), rounds=9, calls=5)
    return found


def main() -> Report:
    """The medians of three processes."""
    found = medians(MODULE)
    listed = rows(found, "us", {(what, peer): ">= 1.0" for what in found for peer in (SDPA, EAGER)})
    lost = [row.what for row in listed if (row.ratio or 0) < 1]
    notes = (f"Slower than torch: {', '.join(lost)}." if lost else "Slower than torch: none.",)
    return Report(
        "cpu_serving", "Decode attention and gating on the CPU, medians of three processes", tuple(listed), notes=notes
    )
