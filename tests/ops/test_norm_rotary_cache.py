"""The norm of heads, their rotation and the write to a paged cache in one: the bits of the ops, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops import kv_cache  # noqa: E402
from tests.ops.tensors import made  # noqa: E402
from tests.ops.test_kv_cache import DTYPES, LAYOUTS  # noqa: E402
from tests.ops.test_kv_cache_rotary import (  # noqa: E402
    COS,
    KEY_CACHE,
    POSITIONS,
    QUERY,
    SHAPES,
    SIN,
    TOKENS,
    VALUE,
    copies,
    inputs,
)
from tests.ops.test_norm_rotary import exact_rows, weights  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

MORE = [
    ((32, 8), 128, 64, 16),
    ((8, 4), 256, 128, 8),
    ((2, 1), 512, 256, 8),
    ((2, 1), 640, 96, 16),
    ((2, 1), 96, 48, 8),
]


def together(args: list[Any], pair: list[Any], **options: Any) -> Any:
    return ops.rms_norm_rotary_embedding_and_cache(*args[:3], *pair, *args[3:8], positions=args[8], **options)


def apart(args: list[Any], pair: list[Any], **options: Any) -> None:
    query, key, value, cos, sin, *caches, mapping, positions = args
    turned = ops.rms_norm_rotary_embedding(query, key, *pair, cos, sin, positions=positions, **options)
    query.copy_(turned[0])
    key.copy_(turned[1])
    ops.reshape_and_cache(key, value, *caches, mapping)


def assert_the_bits_of_both(args: list[Any], pair: list[Any], **options: Any) -> None:
    theirs, plain = copies(args), copies(args)
    query, key = together(args, pair, **options)
    assert query is args[0] and key is args[1]
    apart(theirs, pair, **options)
    for place, (ours, right) in enumerate(zip(args, theirs, strict=True)):
        assert right is None or torch.equal(ours, right), place
    assert torch.equal(args[VALUE], plain[VALUE]) and not torch.equal(args[KEY_CACHE], plain[KEY_CACHE])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "width", "half", "x"), [*SHAPES[:6], *MORE], ids=str)
def test_the_bits_of_the_ops(
    heads: tuple[int, int], width: int, half: int, x: int, dtype: Any, layout: str, device: str
) -> None:
    for interleaved, casting, rounding, table in (
        (False, "llama", "each", dtype),
        (True, "gemma", "once", torch.float32),
    ):
        args = inputs(device, layout, heads=heads, width=width, half=half, x=x, dtype=dtype, table=table)
        packed = exact_rows(TOKENS, heads[0] + 2 * heads[1], width, dtype=dtype, device=device)
        args[:3] = packed.split((heads[0], heads[1], heads[1]), 1)
        options = {"eps": 0.0, "casting": casting, "rounding": rounding, "interleaved": interleaved}
        assert_the_bits_of_both(args, weights(width, table, device), **options)


def test_without_a_norm_and_with_whole_tables(device: str) -> None:
    args = inputs(device)
    args[COS], args[SIN], args[POSITIONS] = made(TOKENS, 16, device=device), made(TOKENS, 16, device=device), None
    assert_the_bits_of_both(args, [None, None], rounding="each")


def test_nothing(device: str) -> None:
    args = inputs(device, heads=(0, 0))
    before = [x.clone() for x in args]
    together(args, weights(16, torch.float32, device))
    assert all(map(torch.equal, args, before))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck(layout: str, device: str) -> None:
    args = inputs(device, layout)
    given = (*args[:3], *weights(16, torch.float32, device), *args[3:9], 1e-6, 1, False, True)
    checked = torch.library.opcheck(kv_cache.RMS_NORM_ROTARY_EMBEDDING_AND_CACHE, given)
    assert set(checked.values()) == {"SUCCESS"}


def test_a_gradient_is_refused(device: str) -> None:
    args = inputs(device)
    args[QUERY] = args[QUERY].clone().requires_grad_()
    with pytest.raises(RuntimeError, match="rms_norm_rotary_embedding_and_cache: a gradient is wanted"):
        together(args, weights(16, torch.float32, device))


BAD: dict[str, tuple[Any, str]] = {
    "a weight of one": (lambda _, pair: pair.__setitem__(0, None), "query_weight is None and key_weight is not"),
    "a weight of another width": (
        lambda _, pair: pair.__setitem__(1, pair[1][:8]),
        "key_weight has shape (8,); needed (16,), a number for each element of a head",
    ),
    "a value of another dtype": (
        lambda args, _: args.__setitem__(VALUE, args[VALUE].half()),
        "value is float16 and key is float32; needed one dtype",
    ),
    "tables of another width": (
        lambda args, _: args.__setitem__(slice(COS, SIN + 1), [args[COS].repeat(1, 2)[:, :12]] * 2),
        "needed at most 8 columns, half of a head, or head_dim columns (not if interleaved)",
    ),
}


@pytest.mark.parametrize("way", ["by the kernel", "in a trace"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, way: str, device: str) -> None:
    change, text = BAD[name]
    args, pair = inputs(device), weights(16, torch.float32, device)
    change(args, pair)
    if way == "in a trace":
        args, pair = ([x if x is None else x.to("meta") for x in some] for some in (args, pair))
    with pytest.raises(RuntimeError, match="rms_norm_rotary_embedding_and_cache: .*" + re.escape(text)):
        together(args, pair)


@pytest.mark.parametrize("which", [0, 1], ids=["query_weight", "key_weight"])
def test_weights_in_what_is_written_are_refused(which: int, device: str) -> None:
    """Of the heads, and of a cache; nothing is written."""
    for place in (QUERY, KEY_CACHE):
        args, pair = inputs(device), weights(16, torch.float32, device)
        if place == QUERY:
            args[QUERY] = args[QUERY].clone()
        pair[which] = args[place].flatten()[:16]
        before = [x.clone() for x in args]
        with pytest.raises(RuntimeError, match=f"{('query', 'key')[which]}_weight overlaps"):
            together(args, pair)
        assert all(map(torch.equal, args, before))
