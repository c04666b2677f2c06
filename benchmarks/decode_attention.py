"""Decode attention over a paged cache: the bytes of keys and values read, as a share of the copy rate.

The peers are torch's ``scaled_dot_product_attention`` over caches that were gathered beforehand, and compiled
FlexAttention with a paged mask. No time includes the gathering. All times are those of CUDA graphs of several calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.kv_cache import gpu_us
from benchmarks.norm import FLUSH_BYTES, copy_rate
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

HEADS, WIDTH, BLOCK_SIZE = 32, 128, 16
FLEX_PAGE = 128  # the smallest page with FlexAttention's default tiles
SDPA, FLEX = "torch SDPA", "torch flex"
Functions = dict[str, Callable[[], "torch.Tensor"]]


@dataclass(frozen=True, slots=True)
class Case:
    """One shape, and our target: a share of the copy rate, or microseconds."""

    sequences: int
    keys: int  # per sequence, or their mean
    kv_heads: int
    target: str = ""
    kind: str = "bfloat16"  # of the caches; the query is bfloat16, or float32 for such caches
    mixed: bool = False  # lengths by Zipf's law
    peers: tuple[str, ...] = (SDPA,)

    def __str__(self) -> str:
        kind = "" if self.kind == "bfloat16" else f", {self.kind}"
        mixed = ", mixed lengths" if self.mixed else ""
        return f"{self.sequences}x{self.keys}, {HEADS}/{self.kv_heads} heads{kind}{mixed}"

    def lengths(self) -> list[int]:
        """Keys of each sequence."""
        return zipf(self.sequences, self.keys) if self.mixed else [self.keys] * self.sequences


CASES = (
    Case(64, 4096, 8, ">= 0.85", peers=(SDPA, FLEX)),
    Case(64, 4096, 4, ">= 0.85"),
    Case(16, 16384, 8, ">= 0.85", peers=(SDPA, FLEX)),
    Case(16, 16384, 4, ">= 0.85"),
    Case(1, 131072, 8, ">= 0.75", peers=(SDPA, FLEX)),
    Case(1, 131072, 4, ">= 0.75"),
    Case(64, 4096, 8, ">= 0.80", mixed=True, peers=(FLEX,)),
    Case(64, 4096, 4, ">= 0.80", mixed=True, peers=(FLEX,)),
    Case(64, 4096, 32),
    Case(256, 512, 8),
    Case(64, 4096, 8, kind="float8_e4m3fn", peers=()),
    Case(64, 4096, 8, kind="float8_e5m2", peers=()),
    Case(16, 16384, 8, kind="float8_e4m3fn", peers=()),
    Case(64, 4096, 8, kind="float32"),
    Case(1, 512, 8, "<= 8 us", peers=(SDPA, FLEX)),
    Case(1, 512, 4, "<= 8 us"),
)


def zipf(sequences: int, mean: int) -> list[int]:
    """Lengths in proportion to 1, 1/2, 1/3 and so on with the given mean, each at least 1."""
    whole = sequences * mean / sum(1 / rank for rank in range(1, sequences + 1))
    return [max(round(whole / rank), 1) for rank in range(1, sequences + 1)]


def contestants(case: Case, device: str = "cuda", compiled: Callable[..., Any] | None = None) -> Functions:
    """Every function on the same numbers. Blocks are in random order. FlexAttention is eager unless ``compiled``."""
    import torch

    from precast.ops.decode_attention import paged_decode_attention

    lengths = case.lengths()
    columns, kind = -(-max(lengths) // BLOCK_SIZE), getattr(torch, case.kind)
    of_query = torch.float32 if kind == torch.float32 else torch.bfloat16
    blocks = [-(-length // BLOCK_SIZE) for length in lengths]
    query = torch.randn(case.sequences, HEADS, WIDTH, device=device, dtype=of_query)
    shape = (sum(blocks), BLOCK_SIZE, case.kv_heads, WIDTH)
    keys, values = (torch.randn(shape, device=device, dtype=of_query).to(kind) for _ in range(2))
    order, tables = torch.randperm(sum(blocks), device=device).int().split(blocks), []
    for row in order:
        tables.append(torch.nn.functional.pad(row, (0, columns - len(row)), value=-1))
    table, counts = torch.stack(tables), torch.tensor(lengths, device=device, dtype=torch.int32)
    functions: Functions = {"precast": lambda: paged_decode_attention(query, keys, values, table, counts)}

    def gathered(cache: torch.Tensor) -> list[torch.Tensor]:
        return [cache[row].flatten(0, 1)[:length] for row, length in zip(order, lengths, strict=True)]

    if SDPA in case.peers:
        pair = [torch.stack(gathered(cache)).transpose(1, 2).contiguous() for cache in (keys, values)]
        functions[SDPA] = by_sdpa(query, *pair)
    if FLEX in case.peers:
        functions[FLEX] = by_flex(query, gathered(keys), gathered(values), lengths, compiled)
    check(functions)
    return functions


def by_sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Torch's own attention; keys and values are ``(sequences, heads, keys, width)``."""
    import torch

    def call() -> torch.Tensor:
        rows = torch.nn.functional.scaled_dot_product_attention(query.unsqueeze(2), key, value, enable_gqa=True)
        return rows.squeeze(2)

    return call


def by_flex(
    query: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    lengths: Sequence[int],
    compiled: Callable[..., Any] | None,
) -> Callable[[], torch.Tensor]:
    """FlexAttention over pages in random order: one line of keys for all sequences, and a mask by pages."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    device = query.device
    counts = [-(-length // FLEX_PAGE) for length in lengths]
    pages, columns = sum(counts), max(counts)
    order = torch.randperm(pages, device=device)
    place = torch.full((len(lengths), pages), -1, device=device, dtype=torch.int32)  # of a page in its sequence
    table = torch.zeros(len(lengths), columns, device=device, dtype=torch.int32)
    lines = [keys[0].new_zeros(pages, FLEX_PAGE, *rows[0].shape[1:]) for rows in (keys, values)]
    for i, row in enumerate(order.split(counts)):
        table[i, : len(row)] = row
        place[i, row] = torch.arange(len(row), device=device, dtype=torch.int32)
        for line, rows in zip(lines, (keys[i], values[i]), strict=True):
            room = rows.new_zeros(len(row) * FLEX_PAGE, *rows.shape[1:])
            room[: len(rows)] = rows
            line[row] = room.unflatten(0, (-1, FLEX_PAGE))
    length = torch.tensor(lengths, device=device, dtype=torch.int32)

    def seen(b: Any, _h: Any, _q: Any, at: Any) -> Any:
        page = place[b, at // FLEX_PAGE]
        return (page >= 0) & (page * FLEX_PAGE + at % FLEX_PAGE < length[b])

    full = length // FLEX_PAGE
    last = table.gather(1, full.clamp(max=columns - 1).long()[:, None])
    partly = torch.nn.functional.pad(last, (0, columns - 1))
    mask = BlockMask(
        *((1, pages * FLEX_PAGE), (length % FLEX_PAGE > 0).int()[:, None, None], partly[:, None, None]),
        *(full[:, None, None], table[:, None, None], None, None, None, None),
        BLOCK_SIZE=(FLEX_PAGE, FLEX_PAGE),
        mask_mod=seen,
    )
    key, value = (line.flatten(0, 1).transpose(0, 1).unsqueeze(0) for line in lines)
    function = flex_attention if compiled is None else compiled(flex_attention)

    def call() -> torch.Tensor:
        rows: torch.Tensor = function(query.unsqueeze(2), key, value, block_mask=mask, enable_gqa=True)
        return rows.squeeze(2)

    return call


def check(functions: Functions) -> None:
    """Raises unless all results agree within bfloat16's precision."""
    import torch

    first, *others = [function() for function in functions.values()]
    for other in others:
        torch.testing.assert_close(first, other, rtol=2e-2, atol=1e-2)


def rows(case: Case, copy: float) -> Iterator[Row]:
    """One shape beside each peer: a share of the copy rate, or the time if the target is a time."""
    import torch

    torch.compiler.reset()  # a fresh compilation for a fixed shape is the best case of torch.compile
    functions = contestants(case, compiled=functools.partial(torch.compile, dynamic=False))
    found = {name: gpu_us(function) for name, function in functions.items()}
    size = 2 * sum(case.lengths()) * case.kv_heads * WIDTH * getattr(torch, case.kind).itemsize
    in_time = case.target.endswith("us")
    values = found if in_time else {name: size / us / 1e3 / copy for name, us in found.items()}
    for peer in case.peers or ("",):
        given = (str(case), values["precast"], "us" if in_time else "of copy", peer, values.get(peer))
        yield Row(*given, higher_is_better=not in_time, target=case.target)


def main() -> Report:
    """Measure every shape."""
    import torch

    title = "Decode attention over a paged cache on the GPU, bf16 unless said"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("decode_attention", title, skipped="torch sees no NVIDIA GPU")
    copy = copy_rate(torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")) * 1e-9
    found = [row for case in CASES for row in rows(case, copy)]
    notes = (
        f"{HEADS} query heads of {WIDTH}, blocks of {BLOCK_SIZE} in no order; the copy moves {copy:.0f} GB/s.",
        f"{SDPA} reads caches that were gathered before, which its time leaves out; {FLEX} reads pages of {FLEX_PAGE}.",
    )
    return Report("decode_attention", title, tuple(found), notes=notes)
