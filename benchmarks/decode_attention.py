"""Decode attention over a paged cache: the bytes of keys and values read, as a share of the copy rate.

The peer is torch's ``scaled_dot_product_attention`` over caches that were gathered beforehand. Its time excludes the
gathering. All times are those of CUDA graphs of several calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from benchmarks.kv_cache import gpu_us
from benchmarks.norm import FLUSH_BYTES, copy_rate
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

HEADS, WIDTH, BLOCK_SIZE = 32, 128, 16
# Sequences, keys per sequence, key heads; and our target: a share of the copy rate, or microseconds.
CASES = (
    (64, 4096, 8, ">= 0.85"),
    (64, 4096, 4, ">= 0.85"),
    (16, 16384, 8, ">= 0.85"),
    (16, 16384, 4, ">= 0.85"),
    (1, 131072, 8, ">= 0.75"),
    (1, 131072, 4, ">= 0.75"),
    (64, 4096, 32, ""),
    (256, 512, 8, ""),
    (1, 512, 8, "<= 8 us"),
    (1, 512, 4, "<= 8 us"),
)


def contestants(
    sequences: int, keys: int, kv_heads: int, device: str = "cuda"
) -> dict[str, Callable[[], torch.Tensor]]:
    """Both functions on the same numbers, in bf16. The blocks are in random order."""
    import torch

    from precast.ops.decode_attention import paged_decode_attention

    made = functools.partial(torch.randn, device=device, dtype=torch.bfloat16)
    query, columns = made(sequences, HEADS, WIDTH), -(-keys // BLOCK_SIZE)
    key_cache, value_cache = made(2, sequences * columns, BLOCK_SIZE, kv_heads, WIDTH).unbind()
    tables = torch.randperm(sequences * columns, device=device).view(sequences, columns).int()
    lengths = torch.full((sequences,), keys, device=device, dtype=torch.int32)
    key, value = (
        cache[tables].flatten(1, 2)[:, :keys].transpose(1, 2).contiguous() for cache in (key_cache, value_cache)
    )

    def theirs() -> torch.Tensor:
        rows = torch.nn.functional.scaled_dot_product_attention(query.unsqueeze(2), key, value, enable_gqa=True)
        return rows.squeeze(2)

    def ours() -> torch.Tensor:
        return paged_decode_attention(query, key_cache, value_cache, tables, lengths)

    functions = {"precast": ours, "torch SDPA": theirs}
    check(functions)
    return functions


def check(functions: dict[str, Callable[[], torch.Tensor]]) -> None:
    """Raises unless both results agree within bfloat16's precision."""
    import torch

    first, *others = [function() for function in functions.values()]
    for other in others:
        torch.testing.assert_close(first, other, rtol=2e-2, atol=1e-2)


def rows(sequences: int, keys: int, kv_heads: int, target: str, copy: float) -> Iterator[Row]:
    """One shape: a share of the copy rate, or the time if the target is a time."""
    functions = contestants(sequences, keys, kv_heads)
    found = {name: gpu_us(function) for name, function in functions.items()}
    text = f"{sequences}x{keys}, {HEADS}/{kv_heads} heads"
    peer = found["torch SDPA"]
    if target.endswith("us"):
        yield Row(text, found["precast"], "us", "torch SDPA", peer, target=target)
        return
    size = 4 * sequences * keys * kv_heads * WIDTH
    shares = {name: size / us / 1e3 / copy for name, us in found.items()}
    yield Row(text, shares["precast"], "of copy", "torch SDPA", shares["torch SDPA"], True, target)


def main() -> Report:
    """Measure every shape."""
    import torch

    title = "Decode attention over a paged cache on the GPU, bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("decode_attention", title, skipped="torch sees no NVIDIA GPU")
    copy = copy_rate(torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")) * 1e-9
    found = [row for sequences, keys, heads, target in CASES for row in rows(sequences, keys, heads, target, copy)]
    notes = (
        f"{HEADS} query heads of {WIDTH}, blocks of {BLOCK_SIZE} in no order; the copy moves {copy:.0f} GB/s.",
        "torch SDPA reads caches that were gathered before, which its time leaves out.",
    )
    return Report("decode_attention", title, tuple(found), notes=notes)
