"""One small call for each kernel of decode attention and each way that it reads a cache.

Few and small enough for every tool of compute-sanitizer:
``python -m tests.gpu.sanitize -- tests/ops/test_decode_variants.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from tests.ops.decode_cases import Case, assert_right, by_element  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

F32, F16, BF16, E4M3, E5M2 = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


@dataclass(frozen=True)
class Variant:
    """The sizes of a call and where its caches lie."""

    dtype: Any = BF16
    kind: Any = None  # of the caches, if not that of the query
    width: int = 128
    value_width: int = 0
    layout: str = "flash"
    lengths: tuple[int, ...] = (130, 0, 65)
    queries: int = 1
    group: int = 4
    block_size: int = 16

    def case(self) -> Case:
        numbers = torch.Generator().manual_seed(self.width + len(self.layout))
        kind, value_width, heads = self.kind or self.dtype, self.value_width or self.width, 2

        def some(*shape: int) -> Any:
            return torch.randn(*shape, generator=numbers)

        columns = -(-max(self.lengths) // self.block_size)
        blocks = columns * len(self.lengths)
        tables = torch.randperm(blocks, generator=numbers).view(len(self.lengths), columns).int()
        if self.layout == "flash":
            keys = some(blocks, self.block_size, heads, self.width)
            values = some(blocks, self.block_size, heads, value_width)
        else:
            x = 16 // kind.itemsize
            keys = some(blocks, heads, self.width // x, self.block_size, x)
            values = some(blocks, heads, self.block_size, value_width)
        values = values.to(kind)
        if self.layout == "by element":
            values = by_element(values)
        query = some(len(self.lengths), self.queries, heads * self.group, self.width).to(self.dtype)
        return Case([query, keys.to(kind), values, tables, torch.tensor(self.lengths, dtype=torch.int32)])


VARIANTS = {
    "64 wide, float16": Variant(F16, width=64),
    "64 wide, bfloat16, in pieces": Variant(width=64, layout="paged"),
    "96 wide, float16, 16 rows": Variant(F16, width=96, queries=4),
    "128 wide, in pieces, 17 rows": Variant(layout="paged", group=17, block_size=8),
    "192 wide, values of 128": Variant(width=192, value_width=128),
    "256 wide, float16, in pieces": Variant(F16, width=256, layout="paged"),
    "as wide as a block is long, in pieces": Variant(width=64, layout="paged", block_size=64),
    "a sequence over many blocks": Variant(lengths=(2500,), queries=2),
    "by element": Variant(layout="by element"),
    "by element, float16, 64 wide": Variant(F16, width=64, layout="by element", block_size=32),
    "by element, 256 wide": Variant(width=256, layout="by element", block_size=8),
    "float32": Variant(F32, width=80),
    "float32, by element": Variant(F32, width=64, layout="by element", block_size=7),
    "8 bits, bfloat16": Variant(kind=E4M3),
    "8 bits, float16, in pieces": Variant(F16, kind=E5M2, layout="paged", width=64),
    "8 bits, 17 rows": Variant(kind=E5M2, group=17, width=96, lengths=(700, 3)),
    "8 bits, float16, 16 rows": Variant(F16, kind=E4M3, queries=4, width=80),
    "8 bits, 256 wide": Variant(kind=E4M3, width=256),
    "8 bits, float32": Variant(F32, kind=E4M3, width=64),
    "8 bits, by element": Variant(kind=E4M3, layout="by element"),
}


@pytest.mark.parametrize("room", [0, 2200])
@pytest.mark.parametrize("name", VARIANTS)
def test_numbers(name: str, room: int, device: str) -> None:
    """On a GPU, tables with room for few keys are served in one launch, and others in two."""
    # fails if a result is too far from float64
    case = VARIANTS[name].case()
    more = max(room // VARIANTS[name].block_size - case.tensors[3].shape[1], 0)
    case.tensors[3] = torch.nn.functional.pad(case.tensors[3], (0, more), value=-1)
    there = case.on(device)
    assert_right(case, *ops.paged_decode_attention(*there.tensors, **there.options, return_lse=True))
