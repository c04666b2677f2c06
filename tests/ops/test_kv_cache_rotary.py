"""The rotation and the write to a paged cache in one: the bits of the two ops, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops.kv_cache import reference  # noqa: E402
from tests.ops.tensors import made  # noqa: E402
from tests.ops.test_kv_cache import BLOCKS, DTYPES, LAYOUTS, SIZE, WAYS, caches, slots  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

TOKENS, ROWS = 7, 11  # of the tables
QUERY, KEY, VALUE, COS, SIN, KEY_CACHE, VALUE_CACHE, SLOTS, POSITIONS = range(9)


def inputs(
    device: str,
    layout: str = "flash",
    *,
    heads: tuple[int, int] = (4, 2),
    width: int = 16,
    half: int = 8,
    x: int = 8,
    dtype: Any = torch.float32,
    table: Any = torch.float32,
) -> list[Any]:
    """Parts of one packed projection, tables for positions, two caches, slots, positions."""
    queries, keys = heads
    packed = made(TOKENS, queries + 2 * keys, width, dtype=dtype, device=device)
    tables = [made(ROWS, half, dtype=table, device=device, seed=seed) for seed in (3, 4)]
    positions = torch.randint(ROWS, (TOKENS,), generator=torch.Generator().manual_seed(0)).to(device)
    pair = caches(keys, width, x, layout, dtype, device)
    return [*packed.split((queries, keys, keys), 1), *tables, *pair, slots(TOKENS, device), positions]


def copies(args: list[Any]) -> list[Any]:
    """With the packed projection as one again."""
    heads = [t.shape[1] for t in args[:3]]
    return [*torch.cat(args[:3], 1).split(heads, 1), *(t if t is None else t.clone() for t in args[3:])]


def together(args: list[Any], interleaved: bool = False) -> Any:
    return ops.rotary_embedding_and_cache(*args[:8], positions=args[8], interleaved=interleaved)


def apart(args: list[Any], interleaved: bool = False) -> None:
    query, key, value, cos, sin, *pair, mapping, positions = args
    ops.rotary_embedding_(query, key, cos, sin, positions=positions, interleaved=interleaved)
    ops.reshape_and_cache(key, value, *pair, mapping)


def assert_the_bits_of_both(args: list[Any], interleaved: bool = False) -> None:
    theirs, plain = copies(args), copies(args)
    query, key = together(args, interleaved)
    assert query is args[QUERY] and key is args[KEY]
    apart(theirs, interleaved)
    for ours, right, before in zip(args, theirs, plain, strict=True):
        assert right is None or torch.equal(ours, right)
        assert right is not theirs[VALUE] or torch.equal(ours, before)
    assert not torch.equal(args[KEY_CACHE], plain[KEY_CACHE])


# Heads of query and key, width, half of the rotated part, x: vectors, a rest, no rest, odd widths, nothing rotated.
SHAPES = [
    ((4, 2), 64, 32, 8),
    ((8, 8), 64, 16, 8),
    ((3, 1), 32, 16, 16),
    ((2, 2), 24, 8, 4),
    ((4, 2), 10, 5, 5),
    ((5, 1), 7, 2, 7),
    ((1, 3), 1, 0, 1),
    ((2, 2), 16, 0, 8),
]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "width", "half", "x"), SHAPES, ids=str)
def test_the_bits_of_the_two_ops(
    heads: tuple[int, int], width: int, half: int, x: int, dtype: Any, layout: str, interleaved: bool, device: str
) -> None:
    for table in {dtype, torch.float32}:
        args = inputs(device, layout, heads=heads, width=width, half=half, x=x, dtype=dtype, table=table)
        assert_the_bits_of_both(args, interleaved)
        args = inputs(device, layout, heads=heads, width=width, half=half, x=x, dtype=dtype, table=table)
        args[POSITIONS] = args[POSITIONS].int()
        assert_the_bits_of_both(args, interleaved)


def test_a_row_for_each_token(device: str) -> None:
    args = inputs(device)
    args[COS], args[SIN], args[POSITIONS] = args[COS][:TOKENS], args[SIN][:TOKENS], None
    assert_the_bits_of_both(args)


def test_any_layout_in_memory(device: str) -> None:
    """Nothing need be packed; unaligned heads, tables and caches; caches by head; columns of tables apart."""
    for dtype in (torch.bfloat16, torch.float32):
        for place in (QUERY, KEY, VALUE, COS, KEY_CACHE, VALUE_CACHE):
            args = inputs(device, dtype=dtype)
            one = args[place]
            room = made(*one.shape[:-1], one.shape[-1] + 1, dtype=one.dtype, device=device)[..., 1:]
            args[place] = room.copy_(one)
            theirs = [t.clone() for t in args]
            together(args)
            apart(theirs)
            assert all(map(torch.equal, args, theirs)), place
        args = inputs(device, dtype=dtype)
        args[COS] = made(ROWS, 16, device=device)[:, ::2]
        args[VALUE] = made(1, 1, 16, dtype=dtype, device=device).expand(TOKENS, 2, 16)
        pair = made(2, BLOCKS, 2, SIZE, 16, dtype=dtype, device=device).transpose(2, 3)
        args[KEY_CACHE], args[VALUE_CACHE] = pair
        args[SLOTS] = slots(2 * TOKENS, device)[::2]
        assert_the_bits_of_both(args)


def test_the_reference_writes_the_same(device: str) -> None:
    for interleaved in (False, True):
        ours = inputs(device, "paged")
        theirs = copies(ours)
        together(ours, interleaved)
        reference.rotary_embedding_and_cache(*theirs, interleaved)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_no_tokens_and_no_query_heads(device: str) -> None:
    args = inputs(device)
    kept = [t.clone() for t in args[KEY_CACHE:SLOTS]]
    few = [t[:0] if i not in (COS, SIN, KEY_CACHE, VALUE_CACHE) else t for i, t in enumerate(args)]
    together(few)
    assert all(map(torch.equal, args[KEY_CACHE:SLOTS], kept))
    args[QUERY] = args[QUERY][:, :0]
    assert_the_bits_of_both(args)


def test_a_token_without_a_slot_is_rotated_all_the_same(device: str) -> None:
    args = inputs(device)
    args[SLOTS].fill_(-1)
    theirs = copies(args)
    together(args)
    apart(theirs)
    assert all(map(torch.equal, args, theirs))


@pytest.mark.gpu
def test_what_is_outside_on_a_gpu_is_nan_or_left_out() -> None:
    args = inputs("cuda")
    args[SLOTS][:3] = torch.tensor([BLOCKS * SIZE, 2**40, 0], device="cuda")
    args[POSITIONS][2:4] = torch.tensor([ROWS, -1], device="cuda")
    theirs = copies(args)
    together(args)
    apart(theirs)
    for one, other in zip(args, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert args[KEY_CACHE][0, 0].isnan().all()


@pytest.mark.parametrize(
    ("place", "index", "number", "message"),
    [
        (SLOTS, 5, BLOCKS * SIZE, r"slot_mapping\[5\] is 20 and the caches have 20 slots; needed one of these"),
        (POSITIONS, 3, ROWS, r"positions\[3\] is 11 and cos has 11 rows; needed 0 to 10"),
        (POSITIONS, 4, -1, r"positions\[4\] is -1 and cos has 11 rows"),
    ],
)
def test_what_is_outside_is_refused_on_the_cpu_before_anything_is_written(
    place: int, index: int, number: int, message: str
) -> None:
    args = inputs("cpu")
    args[place][index] = number
    kept = copies(args)
    with pytest.raises(RuntimeError, match="rotary_embedding_and_cache: " + message):
        together(args)
    assert all(map(torch.equal, args, kept))


BAD: dict[str, tuple[int, Callable[[Any], Any], str]] = {
    "query of another dtype": (QUERY, lambda t: t.half(), "key is float32 and query is float16; needed one dtype"),
    "query of integers": (QUERY, lambda t: t.long(), "query is int64; needed float32, float16 or bfloat16"),
    "query elsewhere": (QUERY, lambda t: t.to("meta"), "key is on .* and query on meta; needed one device"),
    "fewer queries": (
        QUERY,
        lambda t: t[:5],
        r"key has shape \(7, 2, 16\) and query has \(5, 4, 16\); needed the same",
    ),
    "narrower queries": (QUERY, lambda t: t[..., :8], r"key has shape .* and query has \(7, 4, 8\); needed the same"),
    "a batch of queries": (QUERY, lambda t: t[None], r"key has shape .* and query has \(1, 7, 4, 16\)"),
    "flat queries": (QUERY, lambda t: t.flatten(1), r"query has shape \(7, 64\); needed \(\.\.\., tokens, heads"),
    "a batch of keys": (KEY, lambda t: t[None], r"key has shape \(1, 7, 2, 16\), value \(7, 2, 16\), key_cache"),
    "tables of another dtype": (COS, lambda t: t.half(), "cos is float16 and query is float32; needed float32, or"),
    "unlike tables": (SIN, lambda t: t.double(), "sin is float64 and cos is float32; needed one dtype"),
    "tables too wide": (COS, lambda t: t.repeat(1, 2), r"sin has shape \(11, 8\); needed \(11, 16\), as cos"),
    "tables elsewhere": (COS, lambda t: t.to("meta"), "cos is on meta and query on .*; needed one device"),
    "too few positions": (POSITIONS, lambda t: t[:6], r"positions has shape \(6,\) and query has \(7, 4, 16\); needed"),
    "positions of floats": (POSITIONS, lambda t: t.float(), "positions is float32; needed int32 or int64"),
    "no positions": (POSITIONS, lambda t: None, r"cos has shape \(11, 8\) and query has .*; needed one row for each"),
    "a cache of 8 bits": (VALUE_CACHE, lambda t: t.byte(), "value_cache is uint8 and key is float32; needed one dtype"),
    "slots of 32 bits": (SLOTS, lambda t: t.int(), "slot_mapping is int32; needed int64"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, way: str, device: str) -> None:
    place, change, message = BAD[case]
    args = inputs(device)
    args[place] = change(args[place])
    kept = [t if t is None else t.clone() for t in args]
    with pytest.raises(RuntimeError, match="rotary_embedding_and_cache: " + message):
        WAYS[way](lambda *a: together(list(a)), args)
    assert all(a is None or a.is_meta or torch.equal(a, b) for a, b in zip(args, kept, strict=True))


MEMORY: dict[str, tuple[int, Callable[[list[Any]], Any], str]] = {
    "query is key": (QUERY, lambda a: a[KEY], "query and key overlap in memory; needed two that do not"),
    "key is value": (VALUE, lambda a: a[KEY], "value begins at one place in memory with query or key"),
    "one query for all": (
        QUERY,
        lambda a: a[QUERY][:1].expand(TOKENS, 4, 16),
        "query is written in place and has shape .*; needed a contiguous last dimension",
    ),
    "keys of columns apart": (
        KEY,
        lambda a: a[KEY].repeat(1, 1, 2)[..., ::2],
        "key is written in place and has shape",
    ),
    "tables in the key": (
        COS,
        lambda a: a[KEY].as_strided((ROWS, 8), (8, 1), a[KEY].storage_offset()),
        "cos overlaps (query|key) in memory, which is written",
    ),
    "a query in the cache": (
        QUERY,
        lambda a: a[KEY_CACHE].view(-1)[1 : a[QUERY].numel() + 1].view(a[QUERY].shape),
        "query overlaps key_cache in memory, which is written",
    ),
    "one cache for both": (KEY_CACHE, lambda a: a[VALUE_CACHE], "key_cache and value_cache begin at one place"),
}


@pytest.mark.parametrize("case", MEMORY)
def test_what_lies_wrong_in_memory_is_refused(case: str, device: str) -> None:
    place, change, message = MEMORY[case]
    args = inputs(device)
    args[place] = change(args)
    kept = [t.clone() for t in args]
    with pytest.raises(RuntimeError, match="rotary_embedding_and_cache: " + message):
        together(args)
    assert all(map(torch.equal, args, kept))
