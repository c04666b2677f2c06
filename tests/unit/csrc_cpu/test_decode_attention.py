"""Decode attention at every CPU level: near float64, the same bits at any thread count and at the levels with FMA."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from tests.ops.decode_cases import Case, assert_right  # noqa: E402
from tests.unit.csrc_cpu.tensors import assert_same_bits  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

# Past a chunk of 512 keys, a group of sixteen and a block of seven; one is empty.
LENGTHS = [0, 1, 16, 17, 530]
GROUPS = (1, 2, 3, 4, 7, 17)  # rows that share a key: whole tiles, rows that are left over, and more than a tile has


def made(group: int, width: int, dtype: Any, kind: Any = None, *, queries: int = 1, block_size: int = 7) -> Case:
    """Two key heads, blocks in no order, and NaN in the blocks that no sequence reaches."""
    numbers = torch.Generator().manual_seed(group + width)
    columns = -(-max(LENGTHS) // block_size)
    tables = torch.randperm(len(LENGTHS) * columns, generator=numbers).view(len(LENGTHS), columns)
    query = torch.randn(len(LENGTHS), queries, 2 * group, width, generator=numbers).to(dtype)
    shape = (tables.numel(), block_size, 2, width)
    caches = [torch.randn(shape, generator=numbers).to(dtype).to(kind or dtype) for _ in range(2)]
    for row, length in zip(tables, LENGTHS, strict=True):
        for cache in caches:
            cache[row[-(-length // block_size) :]] = torch.nan
    return Case([query, *caches, tables, torch.tensor(LENGTHS)])


def check(case: Case) -> None:
    assert_right(case, *ops.paged_decode_attention(*case.tensors, **case.options, return_lse=True))


@pytest.mark.parametrize(("group", "width"), [*zip(GROUPS, [64, 80, 96, 128, 192, 256], strict=True)])
def test_near_float64_at_any_width(decode_levels: Any, level: str, group: int, width: int) -> None:
    # fails if a result is too far from float64
    decode_levels.choose(level)
    check(made(group, width, torch.float32))
    check(made(group, width, torch.bfloat16 if group % 2 else torch.float16))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_caches_of_8_bits(decode_levels: Any, level: str, kind: Any) -> None:
    # fails if a result is too far from float64
    decode_levels.choose(level)
    check(made(4, 128, torch.bfloat16, kind))


def test_several_queries_and_a_window(decode_levels: Any, level: str) -> None:
    # fails if a result is too far from float64
    decode_levels.choose(level)
    case = made(3, 64, torch.float32, queries=5)
    case.options = {"window": 70, "softcap": 20.0}
    check(case)


def test_what_is_not_finite_stays_in_its_row(decode_levels: Any, level: str) -> None:
    """A NaN in a query spoils that head alone, in a tile of others; a score of minus infinity has no weight."""
    decode_levels.choose(level)
    case = made(4, 64, torch.float32)
    query, keys, values, tables, lengths = case.tensors
    right = ops.paged_decode_attention(*case.tensors)
    spoiled = query.clone()
    spoiled[-1, 0, 1, 5] = torch.nan
    found = ops.paged_decode_attention(spoiled, keys, values, tables, lengths)
    assert found[-1, 0, 1].isnan().all()
    found[-1, 0, 1] = right[-1, 0, 1]
    assert torch.equal(found, right)
    keys[tables[-1, 3], 2, 1], query[-1, 0, 4:] = -torch.inf, query[-1, 0, 4:].abs()
    values[tables[-1, 3], 2, 1] = 1e30
    found = ops.paged_decode_attention(*case.tensors)
    assert found.isfinite().all() and found.abs().max() < 10


def test_the_last_value_may_be_infinite(decode_levels: Any, level: str) -> None:
    """It is not multiplied by the zero weights beyond the end."""
    decode_levels.choose(level)
    case = made(2, 64, torch.float32)
    case.tensors[2][case.tensors[3][3, 2], 2] = torch.inf  # the 17th of 17
    assert (ops.paged_decode_attention(*case.tensors)[3] == torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_bits_with_any_number_of_threads(decode_levels: Any, threads: Any, dtype: Any) -> None:
    case, found = made(3, 128, dtype), []
    for count in (1, 2, 7):
        threads(count)
        found.append(list(ops.paged_decode_attention(*case.tensors, return_lse=True)))
    assert_same_bits([found[0]] * 2, found[1:])


def test_the_same_bits_at_every_level_with_fma(decode_levels: Any) -> None:
    for group in GROUPS:
        case = made(group, 80, torch.float32)
        found = decode_levels.each(lambda case=case: [ops.paged_decode_attention(*case.tensors)])
        found.pop("baseline", None)
        levels = list(found.values())
        assert_same_bits([levels[0]] * len(levels), levels)
