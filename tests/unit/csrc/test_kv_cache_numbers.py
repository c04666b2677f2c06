"""The device code of the paged caches, run on the CPU: every index, every unit, and what lies outside of a cache."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.kv_cache import reference  # noqa: E402
from precast.ops.rotary import reference as rotary_reference  # noqa: E402
from tests.unit.csrc.emulated import Emulated, made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("kv_cache",)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
BLOCKS, SIZE = 4, 6


def caches(heads: int, width: int, x: int | None, dtype: Any, *, by_element: bool = False) -> tuple[Any, Any]:
    """A pair in the layout of flash-attention, or, with x, the paged one; filled, so that a wrong write shows."""
    if x is None:
        return tuple(made(BLOCKS, SIZE, heads, width, dtype=dtype, seed=seed) for seed in (5, 6))
    shape = (BLOCKS, heads, width // x, SIZE, x)
    values = (BLOCKS, heads, width, SIZE) if by_element else (BLOCKS, heads, SIZE, width)
    return made(*shape, dtype=dtype, seed=5), made(*values, dtype=dtype, seed=6)


def slots(tokens: int) -> Any:
    """Each once, in no order, one token left out in five."""
    mapping = torch.randperm(BLOCKS * SIZE, generator=torch.Generator().manual_seed(tokens))[:tokens]
    mapping[::5] = -1
    return mapping


def check(gpu: Emulated, key: Any, value: Any, key_cache: Any, value_cache: Any, mapping: Any) -> str:
    """Compares with the reference, and returns the launches."""
    wanted = [cache.clone() for cache in (key_cache, value_cache)]
    reference.reshape_and_cache(key, value, *wanted, mapping)
    gpu.launches()
    gpu.ops.reshape_and_cache(key, value, key_cache, value_cache, mapping)
    assert torch.equal(key_cache, wanted[0]) and torch.equal(value_cache, wanted[1])
    return gpu.launches()


# (dtype, tokens, heads, width, x, launch)
SHAPES = [
    (BF16, 1, 8, 128, None, "1,128x1"),
    (BF16, 7, 8, 128, 8, "7,128x1"),
    (BF16, 7, 1, 64, None, "2,32x4"),
    (BF16, 5, 3, 96, 8, "3,64x2"),
    (F16, 5, 40, 128, None, "5,256x1"),  # more units than threads
    (F16, 9, 2, 36, 4, "3,32x4"),  # units of 8 bytes
    (F16, 9, 2, 10, 2, "3,32x4"),  # 4 bytes
    (F16, 9, 3, 65, 5, "9,224x1"),  # 2 bytes
    (F32, 9, 3, 65, 13, "9,224x1"),
    (F32, 6, 2, 64, 4, "2,32x4"),
    (F32, 3, 2, 16, 16, "1,32x4"),
]


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(("dtype", "tokens", "heads", "width", "x", "launch"), SHAPES, ids=str)
def test_every_unit(
    gpu: Emulated, dtype: Any, tokens: int, heads: int, width: int, x: int | None, launch: str, paged: bool
) -> None:
    pair = caches(heads, width, x if paged else None, dtype)
    key, value = made(tokens, heads, width, dtype=dtype, seed=1), made(tokens, heads, width, dtype=dtype, seed=2)
    said = check(gpu, key, value, *pair, slots(tokens))
    if paged == (x is not None):
        assert said == f"reshape_and_cache<{launch}>"


@pytest.mark.parametrize(("dtype", "tokens", "heads", "width", "x", "launch"), SHAPES, ids=str)
def test_values_by_element_and_keys_alone(
    gpu: Emulated, dtype: Any, tokens: int, heads: int, width: int, x: int | None, launch: str
) -> None:
    keys, values = caches(heads, width, x or 1, dtype, by_element=True)
    key, value = made(tokens, heads, width, dtype=dtype, seed=1), made(tokens, heads, width, dtype=dtype, seed=2)
    # fails if a cache differs from the reference in one element
    check(gpu, key, value, keys, values, slots(tokens))
    wanted = made(*keys.shape, dtype=dtype, seed=5)
    reference.reshape_and_cache(key, None, wanted, None, slots(tokens))
    alone = made(*keys.shape, dtype=dtype, seed=5)
    gpu.launches()
    gpu.ops.reshape_and_cache(key, None, alone, None, slots(tokens))
    assert torch.equal(alone, wanted)
    if x is not None:
        assert gpu.launches() == f"reshape_and_cache<{launch}>"  # as many units as with values


def test_views_are_read_and_written_where_they_lie(gpu: Emulated) -> None:
    heads, width = 2, 16
    packed = made(7, 8, width, dtype=BF16)
    both = made(BLOCKS, 2, SIZE, heads, width, dtype=BF16)
    # fails if a cache differs from the reference in one byte
    check(gpu, packed[:, 4:6], packed[:, 6:], both[:, 0], both[:, 1], slots(7))
    by_head = made(2, BLOCKS, heads, SIZE, width, dtype=BF16)
    check(gpu, packed[:, 4:6], packed[:, 6:], *by_head.transpose(2, 3), slots(7))
    wide = made(2, BLOCKS, SIZE, heads, width + 1, dtype=BF16)  # rows of an odd number of elements
    check(gpu, packed[:, 4:6], packed[:, 6:], *wide[..., 1:], slots(7))
    check(gpu, packed[:, ::4], made(7, 1, width, dtype=BF16).expand(7, 2, width), *by_head.transpose(2, 3), slots(7))
    across = made(7, width, heads, dtype=BF16).transpose(1, 2)
    check(gpu, across, across[:, :, :], both[:, 0], both[:, 1], slots(14)[::2])


def test_what_lies_outside_of_the_caches_is_never_written(gpu: Emulated) -> None:
    """Slots behind the last one and negative ones leave their tokens out."""
    room = made(2, BLOCKS + 2, SIZE, 2, 8)
    kept = room.clone()
    beyond = [BLOCKS * SIZE, BLOCKS * SIZE + 3, 2**31, 2**40 + 1, 2**63 - 1, -1, -7, -(2**63)]
    mapping = torch.tensor([0, *beyond, BLOCKS * SIZE - 1])
    key, value = made(len(mapping), 2, 8, seed=1), made(len(mapping), 2, 8, seed=2)
    gpu.ops.reshape_and_cache(key, value, *room[:, 1:-1], mapping)
    for of_room, of_kept, rows in zip(room, kept, (key, value), strict=True):
        of_kept[1, 0], of_kept[-2, -1] = rows[0], rows[-1]
        assert torch.equal(of_room, of_kept)


def test_offsets_have_64_bits(gpu: Emulated) -> None:
    """Blocks a gigabyte apart, of memory that is never touched but for two slots."""
    blocks = 6
    room = torch.empty(2, blocks, 1 << 29, dtype=BF16)
    pair = [half.as_strided((blocks, 1 << 20, 1, 8), (1 << 29, 8, 8, 1), half.storage_offset()) for half in room]
    key, value = made(2, 1, 8, dtype=BF16, seed=1), made(2, 1, 8, dtype=BF16, seed=2)
    gpu.ops.reshape_and_cache(key, value, *pair, torch.tensor([3, (blocks << 20) - 1]))
    for cache, rows in zip(pair, (key, value), strict=True):
        assert torch.equal(cache[0, 3], rows[0]) and torch.equal(cache[-1, -1], rows[1])


def test_a_token_of_2_to_the_30_elements_is_refused(gpu: Emulated) -> None:
    key = torch.zeros(1, 1, 1, dtype=BF16).expand(1, 1 << 30, 1)
    cache = torch.empty(2, 1, 1, 1 << 30, 1, dtype=BF16)
    wanted = r"{}: a token has {} heads of 1 elements; needed fewer than 2\^30 in all"
    with pytest.raises(RuntimeError, match=wanted.format("reshape_and_cache", 1 << 30)):
        gpu.ops.reshape_and_cache(key, key, *cache, torch.tensor([0]))
    query, table = torch.empty(1, 1 << 30, 1, dtype=BF16), torch.zeros(1, 0)
    args = (made(1, 1, 1, dtype=BF16), made(1, 1, 1, dtype=BF16), table, table, *cache[:, :, :, :1], torch.tensor([0]))
    with pytest.raises(RuntimeError, match=wanted.format("rotary_embedding_and_cache", (1 << 30) + 2)):
        gpu.ops.rotary_embedding_and_cache(query, *args, None, False)


def test_nothing_is_launched_for_nothing(gpu: Emulated) -> None:
    gpu.launches()
    pair, none = caches(2, 8, None, F32), torch.empty(0, dtype=torch.int64)
    gpu.ops.reshape_and_cache(made(0, 2, 8), made(0, 2, 8), *pair, none)
    gpu.ops.reshape_and_cache(made(2, 2, 8), made(2, 2, 8), *(cache[:0] for cache in pair), slots(2))
    gpu.ops.reshape_and_cache(made(2, 2, 0), made(2, 2, 0), *(cache[..., :0] for cache in pair), slots(2))
    key, table = made(0, 2, 8), made(0, 4)
    gpu.ops.rotary_embedding_and_cache(made(0, 4, 8), key, key, table, table, *pair, none, None, False)
    assert gpu.launches() == ""


# ---- rotated on their way ----

ROWS = 9  # of the tables


def rotate(
    gpu: Emulated,
    heads: tuple[int, int],
    width: int,
    half: int,
    x: int | None,
    dtype: Any,
    interleaved: bool,
    table: Any,
) -> str:
    """Parts of one projection, beside the reference, which may round the other way. Returns the launches."""
    queries, keys = heads
    packed = made(5, queries + 2 * keys, width, dtype=dtype)
    tables = [made(ROWS, half, dtype=table, seed=seed) for seed in (3, 4)]
    positions = torch.tensor([8, 0, 3, 3, 5])
    both = [(packed.clone(), *caches(keys, width, x, dtype)) for _ in range(2)]
    gpu.launches()
    for (qkv, *pair), call in zip(
        both, (gpu.ops.rotary_embedding_and_cache, reference.rotary_embedding_and_cache), strict=True
    ):
        call(*qkv.split((queries, keys, keys), 1), *tables, *pair, slots(5), positions, interleaved)
    unit = torch.finfo(dtype).eps
    for ours, right in zip(*both, strict=True):
        torch.testing.assert_close(ours, right, rtol=2 * unit, atol=2e-6)
    value = both[0][0][:, queries + keys :]
    assert torch.equal(value, packed[:, queries + keys :])
    kept = slots(5) >= 0
    at = slots(5)[kept]
    rotated = both[0][0][:, queries : queries + keys][kept]
    for cache, rows in ((both[0][1], rotated), (both[0][2], value[kept])):
        by_slot = cache if x is None else cache.movedim(3 if cache.dim() == 5 else 2, 1)
        assert torch.equal(by_slot[at // SIZE, at % SIZE].reshape(rows.shape), rows)
    return gpu.launches()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("dtype", "heads", "width", "half", "x", "launch"),
    [
        (BF16, (4, 2), 64, 32, None, "bf16<2,128x1>"),
        (BF16, (4, 2), 64, 16, 8, "bf16<2,128x1>"),  # a part is not rotated
        (BF16, (3, 3), 48, 16, 16, "bf16<2,128x1>"),
        (F16, (4, 1), 32, 16, 8, "f16<1,128x1>"),
        (F16, (4, 1), 32, 16, 4, "f16_any<4,128x1>"),  # pieces of 8 bytes
        (F16, (2, 2), 24, 4, None, "f16_any<3,128x1>"),
        (F32, (4, 2), 16, 8, 4, "f32<1,128x1>"),
        (F32, (4, 2), 16, 4, 8, "f32<1,128x1>"),
        (F32, (3, 1), 7, 3, 7, "f32_any<1,128x1>"),
        (F32, (3, 1), 5, 0, 1, "f32_any<1,128x1>"),
    ],
    ids=str,
)
def test_rotated(
    gpu: Emulated,
    dtype: Any,
    heads: tuple[int, int],
    width: int,
    half: int,
    x: int | None,
    launch: str,
    interleaved: bool,
) -> None:
    for table in {dtype, F32}:
        said = rotate(gpu, heads, width, half, x, dtype, interleaved, table)
        assert said == f"rotary_and_cache_{launch}"


@pytest.mark.parametrize(("dtype", "width", "x"), [(BF16, 64, 8), (F32, 10, 5)], ids=str)
def test_rotated_with_values_by_element(gpu: Emulated, dtype: Any, width: int, x: int) -> None:
    given = [made(5, heads, width, dtype=dtype, seed=heads) for heads in (4, 2, 2)]
    table = made(5, width // 2, dtype=dtype)
    pairs = [caches(2, width, x, dtype, by_element=by_element) for by_element in (True, False)]
    for pair in pairs:
        gpu.ops.rotary_embedding_and_cache(*(t.clone() for t in given), table, table, *pair, slots(5), None, False)
    kept = slots(5)[slots(5) >= 0]
    assert torch.equal(pairs[0][0], pairs[1][0])
    for _, values in pairs:
        by_slot = values.movedim(3 if values.shape[2] == width else 2, 1)
        assert torch.equal(by_slot[kept // SIZE, kept % SIZE], given[2][slots(5) >= 0])


def test_rotated_outside_of_everything(gpu: Emulated) -> None:
    """NaN where a position is not in the tables; nothing is written where a slot is not in the caches."""
    room = made(2, BLOCKS + 2, SIZE, 1, 8)
    kept = room.clone()
    query, key, value = (made(4, 1, 8, seed=seed) for seed in (1, 2, 3))
    table = made(ROWS, 4)
    mapping = torch.tensor([2**40, BLOCKS * SIZE, -1, 1])
    args = (query, key, value, table, table, *room[:, 1:-1], mapping, torch.tensor([0, 1, -1, ROWS]), False)
    gpu.ops.rotary_embedding_and_cache(*args)
    assert query[2:].isnan().all() and key[2:].isnan().all() and not key[:2].isnan().any()
    assert room[0, 1, 1].isnan().all() and torch.equal(room[1, 1, 1], value[3])
    room[:, 1, 1] = kept[:, 1, 1]
    assert torch.equal(room, kept)


# (dtype, heads of query and key, width, columns of the tables, x, kernel)
NORMED = [
    (BF16, (4, 2), 128, 64, 8, ""),
    (BF16, (4, 2), 128, 128, None, ""),  # whole tables
    (F16, (3, 1), 48, 16, 8, ""),  # three units, of four
    (F32, (2, 1), 256, 256, 4, ""),
    (BF16, (2, 1), 640, 640, 8, "_any"),
    (F16, (2, 2), 20, 10, 4, "_any"),
    (F32, (2, 1), 7, 2, 7, "_any"),
]


@pytest.mark.parametrize("by_element", [False, True])
@pytest.mark.parametrize(("dtype", "heads", "width", "columns", "x", "kernel"), NORMED, ids=str)
def test_normalised_heads(
    gpu: Emulated, dtype: Any, heads: tuple[int, int], width: int, columns: int, x: int | None, kernel: str,
    by_element: bool,
) -> None:  # fmt: skip
    """What goes to the caches is what is left in the heads, and that is the reference but for the order of sums."""
    pair = caches(heads[1], width, x, dtype, by_element=by_element)
    packed = made(5, heads[0] + 2 * heads[1], width, dtype=dtype)
    table = [made(5, columns, dtype=dtype, seed=seed) for seed in (1, 2)]
    weights = [made(width, dtype=dtype, seed=seed) for seed in (3, 4)]
    mapping = slots(5)
    query, key, value = packed.clone().split((heads[0], heads[1], heads[1]), 1)
    right = packed.split((heads[0], heads[1], heads[1]), 1)
    turned = rotary_reference.rms_norm_rotary_embedding(*right[:2], *weights, *table, None, 1e-6, 1, False, True, False)
    wanted = [cache.clone() for cache in pair]
    gpu.launches()
    gpu.ops.rms_norm_rotary_embedding_and_cache(
        query, key, value, *weights, *table, *pair, mapping, None, 1e-6, 1, False, True
    )
    named = {F32: "f32", F16: "f16", BF16: "bf16"}[dtype]
    last = "_any" if by_element and x is not None else kernel or "_each" * (dtype != F32)
    assert gpu.launches().startswith(f"norm_rotary_and_cache_{named}{last}<")
    for one, other in zip((query, key), turned, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=16 * torch.finfo(dtype).eps)
    assert torch.equal(value, right[2])
    reference.reshape_and_cache(key, value, *wanted, mapping)
    assert all(map(torch.equal, pair, wanted))
