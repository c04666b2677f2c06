"""The older inference kernels by their names: block tables, lengths and packed sequences, by kernels and by torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from precast import ops
from precast.kernel_loader import InferenceOpsLoader, KVCacheLoader

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

HEADS, WIDTH, X, SIZE, BLOCKS = 2, 8, 4, 4, 9
LENGTHS = [6, 1, 8]
TABLES = [[7, 2, -1], [5, -1, -1], [0, 8, -1]]


@pytest.fixture(params=["cpu", "torch"])
def module(request: pytest.FixtureRequest) -> Any:
    loaded = InferenceOpsLoader().load(ext_name=f"inference_ops_{request.param}")
    assert (loaded.source.kind == "torch") == (request.param == "torch")
    return loaded


def caches() -> tuple[Any, Any]:
    return torch.randn(BLOCKS, HEADS, WIDTH // X, SIZE, X), torch.randn(BLOCKS, HEADS, SIZE, WIDTH)


def put(key_cache: Any, value_cache: Any, key: Any, value: Any, sequence: int, position: int) -> None:
    """One token at its place, as the table of its sequence says."""
    block = TABLES[sequence][position // SIZE]
    if block >= 0:
        key_cache[block, :, :, position % SIZE] = key.unflatten(-1, (WIDTH // X, X))
        value_cache[block, :, position % SIZE] = value


def ints(values: Any) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def test_the_last_token_of_each_sequence(module: Any) -> None:
    torch.manual_seed(0)
    key, value = torch.randn(2, 4, HEADS, WIDTH)
    lengths, tables = [*LENGTHS, 9], [*TABLES, [3, 4, -1]]  # the last one has no block for its token
    ours, right = caches(), caches()
    for one, other in zip(ours, right, strict=True):
        other.copy_(one)
    module.decode_kv_cache_memcpy(key, value, *ours, ints(lengths), ints(tables))
    for i, length in enumerate(LENGTHS):
        put(*right, key[i], value[i], i, length - 1)
    assert all(map(torch.equal, ours, right))


def test_all_tokens_of_packed_sequences(module: Any) -> None:
    """A token that is behind its sequence's length, or behind all sequences, is left out."""
    torch.manual_seed(0)
    ends = [0, 6, 8, 16]  # the second one has room for a token more
    key, value = torch.randn(2, 18, HEADS, WIDTH)
    ours, right = caches(), caches()
    for one, other in zip(ours, right, strict=True):
        other.copy_(one)
    module.context_kv_cache_memcpy(key, value, *ours, ints(LENGTHS), ints(ends), ints(TABLES), max(LENGTHS))
    for i, length in enumerate(LENGTHS):
        for position in range(length):
            put(*right, key[ends[i] + position], value[ends[i] + position], i, position)
    assert all(map(torch.equal, ours, right))
    module.context_kv_cache_memcpy(key[:0], value[:0], *ours, ints([]), ints([0]), ints(TABLES)[:0], 0)
    assert all(map(torch.equal, ours, right))


@pytest.mark.parametrize("rows", [3, 256])
@pytest.mark.parametrize("columns", [WIDTH // 2, WIDTH])
def test_rotated_and_written(module: Any, columns: int, rows: int) -> None:
    """Row ``i`` of the tables is for token ``i``: rows behind the tokens are not used."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 5, WIDTH), torch.randn(3, HEADS, WIDTH), torch.randn(3, HEADS, WIDTH)
    cos, sin = torch.randn(2, rows, columns)
    ours, right = caches(), caches()
    for one, other in zip(ours, right, strict=True):
        other.copy_(one)
    turned = []
    for x in (query, key):
        first, second = x.double().chunk(2, -1)
        c, s = (table[:3, None, : WIDTH // 2].double() for table in (cos, sin))
        turned.append(torch.cat([first * c - second * s, second * c + first * s], -1).float())
    again = [query.clone(), key.clone()]
    module.rotary_embedding_and_cache_copy(
        query, key, value, cos, sin, *ours, ints(LENGTHS), ints(TABLES), high_precision=True
    )
    for i, length in enumerate(LENGTHS):
        put(*right, turned[1][i], value[i], i, length - 1)
    for found, wanted in zip((query, key, *ours), (*turned, *right), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    module.rotary_embedding(*again, cos, sin, False)
    assert torch.equal(again[0], query) and torch.equal(again[1], key)


def test_tables_with_too_few_rows_are_refused(module: Any) -> None:
    query, table = torch.randn(3, 2, WIDTH), torch.randn(2, WIDTH // 2)
    kept = query.clone()
    words = r"needed one row for each of 3 tokens|size of tensor"  # torch's own words where torch computes
    with pytest.raises(RuntimeError, match=words):
        module.rotary_embedding(query, query.clone(), table, table)
    assert torch.equal(query, kept)


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_the_last_tokens_to_one_cache_and_to_two(module: Any, n: int, in_pieces: bool) -> None:
    torch.manual_seed(0)
    lengths, tables = [6, 3, 8], ints(TABLES)
    key, value = torch.randn(2, 3, n, HEADS, WIDTH)
    right, right_values = caches()
    for i, length in enumerate(lengths):
        for token in range(n):
            put(right, right_values, key[i, token], value[i, token], i, length - n + token)

    def by_head(cache: Any) -> Any:
        return cache if in_pieces else cache.transpose(2, 3).flatten(3, 4)

    def unwritten() -> tuple[Any, Any]:
        pair = right.clone(), right_values.clone()
        for i, length in enumerate(lengths):
            for position in range(length - n, length):
                put(*pair, torch.zeros(HEADS, WIDTH), torch.zeros(HEADS, WIDTH), i, position)
        return by_head(pair[0]).contiguous(), pair[1]

    for given in (key, key.flatten(0, 1)):
        cache, _ = unwritten()
        module.copy_k_to_blocked_cache(given, cache, ints(lengths), tables, n, in_pieces)
        assert torch.equal(cache, by_head(right))
    if n == 1:
        for rows in ((key, value), (key[:, 0], value[:, 0])):
            pair = unwritten()
            module.copy_kv_to_blocked_cache(*rows, *pair, ints(lengths), tables, in_pieces)
            assert torch.equal(pair[0], by_head(right)) and torch.equal(pair[1], right_values)
    with pytest.raises(ValueError, match=f"use_new_kcache_layout is {not in_pieces}; needed {4 if in_pieces else 5}"):
        module.copy_k_to_blocked_cache(key, by_head(right), ints(lengths), tables, n, not in_pieces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_eight_bits(module: Any, dtype: Any) -> None:
    x = torch.randn(5, 7).to(dtype)
    narrow, wide = torch.empty(5, 7, dtype=torch.uint8), torch.empty_like(x)
    module.convert_fp8(x, narrow)
    module.convert_fp8(narrow, wide)
    assert torch.equal(wide, x.to(torch.float8_e5m2).to(dtype))
    large = torch.tensor([65000.0, -65000.0, float("inf"), float("nan")]).to(dtype)
    bits = torch.empty(4, dtype=torch.uint8)
    module.convert_fp8(large, bits)
    found = bits.view(torch.float8_e5m2).float()
    assert found[:3].tolist() == [57344.0, -57344.0, 57344.0] and found[3].isnan()
    for bad in ((x, wide), (narrow, narrow), (x, narrow[:4])):
        with pytest.raises(ValueError, match="needed the same shape, and uint8 for exactly one of them"):
            module.convert_fp8(*bad)
    pair = [cache.byte() for cache in caches()]
    with pytest.raises(RuntimeError, match=r"no kernel for caches of 8 bits|dtypes match"):  # by torch: its own words
        module.decode_kv_cache_memcpy(*torch.randn(2, 3, HEADS, WIDTH), *pair, ints(LENGTHS), ints(TABLES))


@pytest.mark.parametrize("alibi", [False, True])
def test_attention(module: Any, alibi: bool) -> None:
    """One token of each sequence over the paged layout, as the formula says."""
    torch.manual_seed(0)
    blocks, size, heads, kv_heads, width, x = 7, 4, 4, 2, 64, 8
    key_cache, value_cache = (
        torch.randn(blocks, kv_heads, width // x, size, x),
        torch.randn(blocks, kv_heads, size, width),
    )
    lengths, tables = ints([5, 9, 1]), ints([[6, 0, -1], [1, 2, 3], [5, -1, -1]])
    query, out, slopes = (
        torch.randn(3, heads, width),
        torch.empty(3, heads * width),
        torch.tensor([0.5, 0.25, 0.1, 1.0]),
    )
    space = [torch.full((3, heads, 4), 7.0) for _ in range(3)]
    given = (out, query, key_cache, value_cache, lengths, tables)
    rest = (*space, slopes if alibi else None, 0.2)
    assert module.flash_decoding_attention(*given, size, 9, *rest) is None
    for i, length in enumerate(lengths.tolist()):
        for head in range(heads):
            places = [(tables[i, at // size], head // 2, at % size) for at in range(length)]
            keys = torch.stack([key_cache[block, kv, :, at].flatten() for block, kv, at in places])
            scores = keys @ query[i, head] * 0.2
            if alibi:
                scores += slopes[head] * (torch.arange(length) - length + 1)
            right = torch.softmax(scores, 0) @ torch.stack([value_cache[place] for place in places])
            torch.testing.assert_close(out.view(3, heads, width)[i, head], right, rtol=1e-4, atol=1e-5)
    assert all((one == 7).all() for one in space)
    with pytest.raises(ValueError, match="block_size is 8; needed the block size of the caches, 4"):
        module.flash_decoding_attention(*given, 8, 9, *rest)


@pytest.mark.parametrize("kind", ["cpu", "torch"])
def test_the_loader_of_the_caches(kind: str) -> None:
    torch.manual_seed(0)
    loaded = KVCacheLoader().load(ext_name=f"kv_cache_{kind}")
    pair = [torch.zeros(2, SIZE, HEADS, WIDTH) for _ in range(2)]
    query, key, value = torch.randn(3, 2, HEADS, WIDTH)
    slots, table = torch.tensor([5, 0]), torch.ones(2, WIDTH // 2)
    loaded.reshape_and_cache(key, value, *pair, slots)
    assert torch.equal(pair[0].flatten(0, 1)[slots], key) and torch.equal(pair[1].flatten(0, 1)[slots], value)
    positions = torch.tensor([1, 0])
    both = loaded.rotary_embedding_and_cache(
        query, key, value, table, table, *pair, slots, positions=positions, interleaved=True
    )
    assert both[0] is query and both[1] is key
    assert torch.equal(pair[0].flatten(0, 1)[slots], key) and not torch.equal(pair[0].flatten(0, 1)[slots], value)


@pytest.mark.parametrize("kind", ["cpu", "torch"])
def test_the_loader_of_the_caches_has_their_attention(kind: str) -> None:
    torch.manual_seed(0)
    loaded = KVCacheLoader().load(ext_name=f"kv_cache_{kind}")
    caches, tables, lengths = torch.randn(2, 3, 4, 2, 64), torch.tensor([[2, 0]]), torch.tensor([7])
    given = (torch.randn(1, 4, 64), *caches, tables, lengths)
    options = {"window": 5, "softcap": 10.0, "sinks": torch.randn(4)}
    found, lse = loaded.paged_decode_attention(*given, **options, return_lse=True)
    right, right_lse = ops.paged_decode_attention(*given, **options, return_lse=True)
    torch.testing.assert_close((found, lse), (right, right_lse))
    torch.testing.assert_close(loaded.paged_decode_attention(given[0].unsqueeze(1), *given[1:], **options)[:, 0], right)
