"""Keys and values into paged caches: what is written and what is not, layouts, graphs, and the words of refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops.kv_cache import reference  # noqa: E402
from tests.ops.tensors import assert_same_with_any_number_of_threads, made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAW = torch.ops.precast
BLOCKS, SIZE = 5, 4
LAYOUTS = ["flash", "paged", "by element"]


def caches(heads: int, width: int, x: int, layout: str, dtype: Any, device: str) -> tuple[Any, Any]:
    """Filled, so that a wrong write shows."""
    if layout == "flash":
        return tuple(made(BLOCKS, SIZE, heads, width, dtype=dtype, device=device, seed=seed) for seed in (5, 6))
    key_cache = made(BLOCKS, heads, width // x, SIZE, x, dtype=dtype, device=device, seed=5)
    values = made(BLOCKS, heads, SIZE, width, dtype=dtype, device=device, seed=6)
    return key_cache, values if layout == "paged" else values.mT.contiguous()


def slots(tokens: int, device: str) -> Any:
    """Each once, in no order, one token left out in five."""
    mapping = torch.randperm(BLOCKS * SIZE, generator=torch.Generator().manual_seed(tokens))[:tokens]
    mapping[1::5] = -1
    return mapping.to(device)


def inputs(device: str, layout: str = "flash", tokens: int = 7, dtype: Any = torch.float32) -> list[Any]:
    rows = [made(tokens, 2, 8, dtype=dtype, device=device, seed=seed) for seed in (1, 2)]
    return [*rows, *caches(2, 8, 4, layout, dtype, device), slots(tokens, device)]


def by_hand(key: Any, value: Any, key_cache: Any, value_cache: Any, mapping: Any) -> tuple[Any, Any]:
    """Element by element, as the page says where each lies."""
    key_cache, value_cache = key_cache.clone(), value_cache.clone()
    by_element = value_cache.shape[2:] == (key.shape[2], SIZE) != (SIZE, key.shape[2])
    for token, slot in enumerate(mapping.tolist()):
        if not 0 <= slot < BLOCKS * SIZE:
            continue
        block, position = divmod(slot, SIZE)
        for head in range(key.shape[1]):
            if key_cache.dim() == 4:
                key_cache[block, position, head] = key[token, head]
                value_cache[block, position, head] = value[token, head]
                continue
            x = key_cache.shape[-1]
            for i in range(key.shape[2]):
                key_cache[block, head, i // x, position, i % x] = key[token, head, i]
                at = (i, position) if by_element else (position, i)
                value_cache[(block, head, *at)] = value[token, head, i]
    return key_cache, value_cache


def assert_written(key: Any, value: Any, key_cache: Any, value_cache: Any, mapping: Any) -> None:
    wanted = by_hand(key, value, key_cache, value_cache, mapping)
    assert ops.reshape_and_cache(key, value, key_cache, value_cache, mapping) is None
    assert torch.equal(key_cache, wanted[0]) and torch.equal(value_cache, wanted[1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "width", "x"), [(1, 1, 1), (1, 4, 2), (3, 5, 5), (2, 12, 4), (2, 66, 2), (8, 16, 8)])
def test_values(heads: int, width: int, x: int, dtype: Any, layout: str, device: str) -> None:
    rows = [made(9, heads, width, dtype=dtype, device=device, seed=seed) for seed in (1, 2)]
    assert_written(*rows, *caches(heads, width, x, layout, dtype, device), slots(9, device))
    ours = inputs(device, layout, dtype=dtype)
    theirs = [t.clone() for t in ours]
    ops.reshape_and_cache(*ours)
    reference.reshape_and_cache(*theirs)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("layout", ["flash", "paged"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_alone(dtype: Any, layout: str, device: str) -> None:
    for heads, width, x in ((1, 1, 1), (3, 5, 5), (2, 16, 8)):
        key = made(9, heads, width, dtype=dtype, device=device, seed=1)
        key_cache, value_cache = caches(heads, width, x, layout, dtype, device)
        wanted, _ = by_hand(key, key, key_cache, value_cache, slots(9, device))
        again = key_cache.clone()
        assert ops.reshape_and_cache(key, None, key_cache, None, slots(9, device)) is None
        reference.reshape_and_cache(key, None, again, None, slots(9, device))
        assert torch.equal(key_cache, wanted) and torch.equal(again, wanted)


def test_values_by_element_where_the_shape_could_mean_both(device: str) -> None:
    """As wide as a block is long, the shape means positions first; a transposed view says the other."""
    key, value = (made(7, 2, SIZE, device=device, seed=seed) for seed in (1, 2))
    key_cache, value_cache = caches(2, SIZE, 2, "paged", torch.float32, device)
    by_element = value_cache.mT.contiguous()
    assert_written(key, value, key_cache, value_cache, slots(7, device))
    ops.reshape_and_cache(key, value, key_cache, by_element.mT, slots(7, device))
    assert torch.equal(by_element.mT, value_cache) and by_element.mT.stride() != value_cache.stride()


def test_any_layout_in_memory(device: str) -> None:
    """Views of a packed projection; caches by head, side by side in one buffer, and one element off."""
    packed = made(7, 8, 8, dtype=torch.bfloat16, device=device)
    mapping = slots(7, device)

    def new(*shape: int) -> Any:
        return made(*shape, dtype=torch.bfloat16, device=device)

    sources = {
        "packed": (packed[:, 4:6], packed[:, 6:]),
        "packed by head": new(7, 2, 24).split(8, -1)[1:],
        "every other element": (new(7, 2, 16)[..., ::2], packed[:, :2]),
        "one head for all": (new(7, 1, 8).expand(7, 2, 8), new(1, 2, 8).expand(7, 2, 8)),
    }
    pairs = {
        "one buffer": lambda: new(BLOCKS, 2, SIZE, 2, 8).unbind(1),
        "by head": lambda: new(2, BLOCKS, 2, SIZE, 8).transpose(2, 3).unbind(0),
        "unaligned": lambda: new(2, BLOCKS, SIZE, 2, 9)[..., 1:].unbind(0),
        "packed": lambda: new(BLOCKS, SIZE, 2, 16).split(8, -1),
        "every other block": lambda: new(2, 2 * BLOCKS, SIZE, 2, 8)[:, ::2].unbind(0),
    }
    for rows in sources.values():
        for pair in pairs.values():
            assert_written(*rows, *pair(), mapping)
        assert_written(*rows, new(BLOCKS, 4, 2, SIZE, 4)[:, ::2], new(BLOCKS, 2, SIZE, 8), slots(14, device)[::2])


def test_slots(device: str) -> None:
    """All left out, both ends, one of two tokens where both have a slot, no tokens, a pool of no blocks."""
    key, value, key_cache, value_cache, _ = inputs(device, tokens=3)
    for mapping in ([-1, -5, -(2**63)], [BLOCKS * SIZE - 1, 0, -1]):
        assert_written(key, value, key_cache, value_cache, torch.tensor(mapping, device=device))
    ops.reshape_and_cache(key, value, key_cache, value_cache, torch.tensor([6, -1, 6], device=device))
    assert any(torch.equal(key_cache[1, 2], key[token]) for token in (0, 2))
    none = torch.empty(0, dtype=torch.int64, device=device)
    assert_written(key[:0], value[:0], key_cache, value_cache, none)
    left_out = torch.full((3,), -1, device=device)
    ops.reshape_and_cache(key, value, key_cache[:0], value_cache[:0], left_out)
    ops.reshape_and_cache(key[..., :0], value[..., :0], key_cache[..., :0], value_cache[..., :0], left_out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slot", [BLOCKS * SIZE, 2**40])
def test_a_slot_that_is_not_there_is_refused_on_the_cpu_before_anything_is_written(slot: int, layout: str) -> None:
    key, value, *pair, mapping = inputs("cpu", layout)
    kept = [t.clone() for t in pair]
    mapping[5] = slot
    with pytest.raises(RuntimeError, match=rf"slot_mapping\[5\] is {slot} and the caches have 20 slots; needed one of"):
        ops.reshape_and_cache(key, value, *pair, mapping)
    assert all(map(torch.equal, pair, kept))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slot_that_is_not_there_leaves_its_token_out_on_a_gpu(layout: str) -> None:
    key, value, *pair, mapping = inputs("cuda", layout)
    rooms = [torch.cat([cache, cache, cache]) for cache in pair]  # blocks before and behind
    mapping[2], mapping[5] = BLOCKS * SIZE, 2**40
    wanted = by_hand(key, value, *pair, mapping)
    ops.reshape_and_cache(key, value, *(room[BLOCKS : 2 * BLOCKS] for room in rooms), mapping)
    for room, right, kept in zip(rooms, wanted, pair, strict=True):
        assert torch.equal(room, torch.cat([kept, right, kept]))


@pytest.mark.large
def test_a_cache_of_more_elements_than_32_bits_count(device: str) -> None:
    """On the CPU only two slots of this memory are ever touched."""
    blocks, size = 1 << 16, 1 << 10
    pair = [torch.empty(blocks, size, 2, 32, dtype=torch.bfloat16, device=device) for _ in range(2)]
    assert pair[0].numel() > 1 << 31
    key, value = (made(2, 2, 32, dtype=torch.bfloat16, device=device, seed=seed) for seed in (1, 2))
    ops.reshape_and_cache(key, value, *pair, torch.tensor([blocks * size - 1, blocks * size // 2 + 3], device=device))
    for cache, rows in zip(pair, (key, value), strict=True):
        assert torch.equal(cache[-1, -1], rows[0]) and torch.equal(cache[blocks // 2, 3], rows[1])


def test_the_same_with_any_number_of_threads() -> None:
    rows = [made(600, 8, 64, seed=seed) for seed in (1, 2)]
    mapping = torch.randperm(640, generator=torch.Generator().manual_seed(0))[:600]
    pair = [torch.zeros(10, 64, 8, 64) for _ in range(2)]

    def filled() -> list[Any]:
        ops.reshape_and_cache(*rows, *(cache.zero_() for cache in pair), mapping)
        return [cache.clone() for cache in pair]

    assert_same_with_any_number_of_threads(filled)
    assert torch.equal(pair[0].flatten(0, 1)[mapping], rows[0])


# What is replaced in a good call, by name, and the words of the refusal.
SHAPES = (
    r"key has shape {}, value {}, key_cache {} and value_cache {}; needed \(tokens, heads, width\) twice, and "
    r"\(blocks, block_size, heads, width\) twice, or \(blocks, heads, width / x, block_size, x\)"
).format(*[r"\([\d, ]+\)"] * 4)
KEY, VALUE, KEY_CACHE, VALUE_CACHE, SLOTS = range(5)
BAD: dict[str, tuple[str, dict[int, Callable[[Any], Any]], str]] = {
    "float64": ("flash", {KEY: lambda t: t.double()}, "key is float64; needed float32, float16 or bfloat16"),
    "integers": ("flash", {KEY: lambda t: t.long()}, "key is int64; needed float32"),
    "value of another dtype": ("flash", {VALUE: lambda t: t.half()}, "value is float16 and key is float32; needed one"),
    "a cache of 8 bits": (
        "flash",
        {KEY_CACHE: lambda t: t.to(torch.float8_e5m2)},
        r"key_cache is float8_e5m2 and key is float32; needed one dtype \(there is no kernel for caches of 8 bits\)",
    ),
    "a cache of bytes": ("paged", {VALUE_CACHE: lambda t: t.byte()}, "value_cache is uint8 and key is float32; needed"),
    "value elsewhere": ("flash", {VALUE: lambda t: t.to("meta")}, "value is on meta and key on .*; needed one device"),
    "cache elsewhere": ("flash", {KEY_CACHE: lambda t: t.to("meta")}, "key_cache is on meta and key on"),
    "slots elsewhere": ("flash", {SLOTS: lambda t: t.to("meta")}, "slot_mapping is on meta and key on"),
    "a batch": ("flash", {KEY: lambda t: t[None], VALUE: lambda t: t[None]}, SHAPES),
    "fewer values": ("flash", {VALUE: lambda t: t[:6]}, SHAPES),
    "another head count": ("flash", {KEY_CACHE: lambda t: t[:, :, :1], VALUE_CACHE: lambda t: t[:, :, :1]}, SHAPES),
    "another width": ("flash", {KEY_CACHE: lambda t: t[..., :4], VALUE_CACHE: lambda t: t[..., :4]}, SHAPES),
    "unlike caches": ("flash", {VALUE_CACHE: lambda t: t[:4]}, SHAPES),
    "heads before positions": ("flash", {VALUE_CACHE: lambda t: t.transpose(1, 2)}, SHAPES),
    "no blocks": ("flash", {KEY_CACHE: lambda t: t[0], VALUE_CACHE: lambda t: t[0]}, SHAPES),
    "paged keys, other values": ("paged", {VALUE_CACHE: lambda t: t.transpose(1, 2)}, SHAPES),
    "paged values of another pool": ("paged", {VALUE_CACHE: lambda t: t[1:]}, SHAPES),
    "values by element of another pool": ("by element", {VALUE_CACHE: lambda t: t[1:]}, SHAPES),
    "keys without values": ("flash", {VALUE: lambda t: None}, "value is None and value_cache is not; needed both, or"),
    "keys without their cache": ("paged", {VALUE_CACHE: lambda t: None}, "value_cache is None and value is not; need"),
    "keys alone of another width": (
        "flash",
        {KEY_CACHE: lambda t: t[..., :4], VALUE: lambda t: None, VALUE_CACHE: lambda t: None},
        r"key has shape \(7, 2, 8\), value None, key_cache \(5, 4, 2, 4\) and value_cache None; needed",
    ),
    "paged keys of fewer pieces": ("paged", {KEY_CACHE: lambda t: t[:, :, :1]}, SHAPES),
    "paged keys of fewer heads": ("paged", {KEY_CACHE: lambda t: t[:, :1]}, SHAPES),
    "slots of 32 bits": ("flash", {SLOTS: lambda t: t.int()}, "slot_mapping is int32; needed int64"),
    "too few slots": ("flash", {SLOTS: lambda t: t[:6]}, r"slot_mapping has shape \(6,\); needed \(7,\), a slot for"),
    "slots in rows": ("flash", {SLOTS: lambda t: t[None]}, r"slot_mapping has shape \(1, 7\); needed \(7,\)"),
}


def traced(function: Callable[..., Any], args: list[Any]) -> Any:
    with torch._subclasses.FakeTensorMode() as mode:
        return function(*(mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in args))


WAYS: dict[str, Callable[..., Any]] = {
    "kernel": lambda function, args: function(*args),
    "traced": traced,
    "transformed": lambda function, args: torch.func.functionalize(function)(*args),
}


def damaged(case: str, device: str) -> list[Any]:
    layout, changes, _ = BAD[case]
    return [changes.get(place, lambda t: t)(tensor) for place, tensor in enumerate(inputs(device, layout))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, way: str, device: str) -> None:
    args = damaged(case, device)
    kept = [None if t is None else t.clone() for t in args]
    with pytest.raises(RuntimeError, match="reshape_and_cache: " + BAD[case][2]):
        WAYS[way](ops.reshape_and_cache, args)
    for now, before in zip(args, kept, strict=True):
        assert now is None or now.is_meta or now.dtype == torch.float8_e5m2 or torch.equal(now, before)


MEMORY: dict[str, tuple[Callable[..., tuple[Any, Any]], str]] = {
    "one block for all": (
        lambda k, v: (k[:1].expand_as(k), v),
        r"key_cache is written in place and has shape \(5, 4, 2, 8\) with strides \(0, 16, 8, 1\); needed a contiguous",
    ),
    "overlapping heads": (
        lambda k, v: (k, v.as_strided(v.shape, (64, 16, 4, 1))),
        r"value_cache is written in place and has shape .* strides \(64, 16, 4, 1\); .* no two elements in one place",
    ),
    "elements apart": (
        lambda k, v: (k.transpose(2, 3).contiguous().transpose(2, 3), v),
        "key_cache is written in place and has shape .*; needed a contiguous last dimension",
    ),
    "one cache for both": (lambda k, v: (k, k), "key_cache and value_cache begin at one place in memory; needed two"),
}


@pytest.mark.parametrize("case", MEMORY)
def test_caches_that_lie_wrong_in_memory_are_refused(case: str, device: str) -> None:
    key, value, *pair, mapping = inputs(device)
    kept = [t.clone() for t in pair]
    make, message = MEMORY[case]
    with pytest.raises(RuntimeError, match="reshape_and_cache: " + message):
        ops.reshape_and_cache(key, value, *make(*pair), mapping)
    assert all(map(torch.equal, pair, kept))


@pytest.mark.parametrize("place", [0, 1, 3])
def test_what_overlaps_a_cache_is_refused(place: int, device: str) -> None:
    given = inputs(device)
    flat = torch.randn(given[2].numel() + given[0].numel() + 1, device=device)
    given[2] = flat[: given[2].numel()].view(given[2].shape)
    given[place] = flat[1 : given[place].numel() + 1].view(given[place].shape)
    kept = flat.clone()
    name = ("key", "value", "", "value_cache")[place]
    with pytest.raises(RuntimeError, match=f"reshape_and_cache: {name} overlaps key_cache in memory, which is written"):
        ops.reshape_and_cache(*given)
    assert torch.equal(flat, kept)
