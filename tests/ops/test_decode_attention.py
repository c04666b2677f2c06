"""Attention over paged caches: numbers against float64, what is never read, graphs, and the words of refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from precast import ops  # noqa: E402
from precast.ops.decode_attention import reference  # noqa: E402
from tests.ops.decode_cases import Case, assert_right, generated  # noqa: E402
from tests.ops.tensors import assert_same_with_any_number_of_threads  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

attention = ops.paged_decode_attention


def check(case: Case, device: str) -> None:
    there = case.on(device)
    assert_right(case, *attention(*there.tensors, **there.options, return_lse=True))


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_numbers(first: int, device: str) -> None:
    # fails if a result is too far from float64
    for seed in range(first, first + 10):
        check(generated(seed), device)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_numbers_of_2000_cases(first: int, device: str) -> None:
    # fails if a result is too far from float64
    for seed in range(first, first + 100):
        check(generated(seed), device)


def plain(
    sequences: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 64,
    *,
    keys: int = 40,
    queries: int = 1,
    block_size: int = 8,
    dtype: Any = torch.float32,
    seed: int = 0,
) -> Case:
    """Full sequences of one length, blocks in no order."""
    numbers = torch.Generator().manual_seed(seed)
    columns = -(-keys // block_size)
    pool = sequences * columns
    query = torch.randn(sequences, queries, heads, width, generator=numbers).to(dtype)
    pair = [torch.randn(pool, block_size, kv_heads, width, generator=numbers).to(dtype) for _ in range(2)]
    tables = torch.randperm(pool, generator=numbers).view(sequences, columns)
    return Case([query, *pair, tables, torch.full((sequences,), keys)])


def by_hand(case: Case, sequence: int, query: int, head: int, window: int = 0) -> Any:
    """One row, key by key."""
    rows, keys, values, tables, lengths = case.tensors
    size, length = keys.shape[1], int(lengths[sequence])
    position, kv_head = length - rows.shape[1] + query, head // (rows.shape[2] // keys.shape[2])
    scores, seen = [], []
    for at in range(length):
        if at > position or (window and at <= position - window):
            continue
        place = (int(tables[sequence, at // size]), at % size, kv_head)
        scores.append(rows[sequence, query, head].double() @ keys[place].double() * rows.shape[3] ** -0.5)
        seen.append(values[place].double())
    return torch.softmax(torch.stack(scores), 0) @ torch.stack(seen)


def test_the_reference_says_what_the_page_says() -> None:
    case = plain(queries=3, keys=21)
    for window in (0, 4):
        case.options = {"window": window} if window else {}
        exact, _, _ = case.exact()
        for sequence, query, head in ((0, 0, 0), (1, 2, 3), (0, 1, 2)):
            torch.testing.assert_close(exact[sequence, query, head], by_hand(case, sequence, query, head, window))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_against_torch(dtype: Any, device: str) -> None:
    """scaled_dot_product_attention of the gathered caches."""
    case = plain(3, 8, 2, 128, keys=304, dtype=dtype).on(device)
    query, keys, values, tables, _ = case.tensors
    gathered = [cache[tables].flatten(1, 2).transpose(1, 2).repeat_interleave(4, 1) for cache in (keys, values)]
    theirs = torch.nn.functional.scaled_dot_product_attention(query.transpose(1, 2), *gathered).transpose(1, 2)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(attention(*case.tensors), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_many_keys_and_many_sequences(dtype: Any, device: str) -> None:
    # fails if a result is too far from float64
    check(plain(1, 8, 2, 64, keys=9001, block_size=16, dtype=dtype), device)
    check(plain(300, 2, 1, 64, keys=33, block_size=16, dtype=dtype), device)
    check(plain(1, 64, 1, 128, keys=1500, queries=2, block_size=16, dtype=dtype), device)


@pytest.mark.long
def test_a_million_keys(device: str) -> None:
    case = plain(1, 1, 1, 64, keys=1 << 20, block_size=256, dtype=torch.bfloat16)
    # fails if a result is too far from float64
    check(case, device)


@pytest.mark.large
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_a_cache_of_more_elements_than_32_bits_count(dtype: Any, device: str) -> None:
    """The same bits as from a small cache. On the CPU only four blocks of this memory are ever touched."""
    case = plain(1, 4, 2, 64, keys=60, block_size=16, dtype=torch.bfloat16 if dtype.itemsize == 1 else dtype)
    query, *small, _, lengths = case.on(device).tensors
    small = [cache.to(dtype) for cache in small]
    blocks = (1 << 31) // small[0][0].numel() + 9
    places = torch.tensor([2, 1 << 19, (1 << 20) + 7, blocks - 1])
    large = [torch.empty(blocks, *cache.shape[1:], dtype=dtype, device=device) for cache in small]
    assert large[0].numel() > 1 << 31
    for cache, of_small in zip(large, small, strict=True):
        for place, block in zip(places.tolist(), of_small, strict=True):
            cache[place] = block
    right = attention(query, *small, torch.arange(4, device=device)[None], lengths)
    assert torch.equal(attention(query, *large, places[None].to(device), lengths), right)
    assert right.isfinite().all() and (right != 0).any()


def test_lengths_and_tables_may_be_views(device: str) -> None:
    case = plain(4, keys=40).on(device)
    query, keys, values, tables, lengths = case.tensors
    wide = torch.stack([lengths, lengths * 0 - 1], 1)
    table = torch.cat([tables, tables * 0 + 10**6], 1)
    found = attention(query, keys, values, table[:, : tables.shape[1]], wide[:, 0])
    assert torch.equal(found, attention(*case.tensors))


def test_nothing(device: str) -> None:
    """No sequences, sequences without tokens, tables without columns, caches without blocks."""
    query, keys, values, tables, lengths = plain().on(device).tensors
    assert attention(query[:0], keys, values, tables[:0], lengths[:0]).shape == (0, 1, 4, 64)
    for call in ((tables, lengths * 0), (tables[:, :0], lengths * 0)):
        result, lse = attention(query, keys, values, *call, return_lse=True)
        assert (result == 0).all() and (lse == -torch.inf).all()
    assert (attention(query, keys[:0], values[:0], tables, lengths * 0) == 0).all()
    sinks = torch.arange(4, dtype=torch.float32, device=device)
    result, lse = attention(query, keys, values, tables, lengths * 0, sinks=sinks, return_lse=True)
    assert (result == 0).all()
    torch.testing.assert_close(lse, sinks.expand(2, 1, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_every_value_of_8_bits(kind: Any, dtype: Any, device: str) -> None:
    """One key per sequence: finite values come out unchanged, and what is not finite is not lost."""
    every = torch.arange(256).to(torch.uint8).view(kind)
    values = every.view(2, 1, 2, 64).expand(2, 1, 2, 64)  # two sequences with a key each, two heads of 64 elements
    query = torch.zeros(2, 2, 64, dtype=dtype, device=device)
    keys = torch.zeros(2, 1, 2, 64).to(kind).to(device)
    tables, lengths = torch.tensor([[0], [1]], device=device), torch.ones(2, dtype=torch.int32, device=device)
    found = attention(query, keys, values.to(device), tables, lengths).cpu()
    exact = every.to(dtype).view(2, 2, 64)
    finite = exact.isfinite()
    assert torch.equal(found.isfinite(), finite) and torch.equal(found[finite], exact[finite])
    if device == "cpu":  # a round of 16 keys has none left over whose weight is zero
        many = [cache.expand(2, 16, 2, 64) for cache in (keys, values)]
        assert torch.equal(attention(query, *many, tables, 16 * lengths).isnan(), exact.isnan())
    query += 1
    scored = attention(query, values.to(device), keys, tables, lengths, return_lse=True, scale=1.0)[1].cpu()
    exact = every.double().view(2, 2, 64).sum(-1)  # the scores of the values as keys
    finite = exact.isfinite()
    assert torch.equal(scored.isfinite(), finite)
    torch.testing.assert_close(scored.double()[finite], exact[finite], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_special_values(dtype: Any, device: str) -> None:
    """NaN stays in its row; a sink far above all scores leaves nothing; large scores do not overflow."""
    case = plain(2, 4, 2, 64, keys=40, dtype=dtype).on(device)
    query, keys, values, tables, lengths = case.tensors
    right = attention(*case.tensors)
    spoiled = query.clone()
    spoiled[0, 0, 1, 5] = torch.nan
    found = attention(spoiled, keys, values, tables, lengths)
    assert found[0, 0, 1].isnan().all()
    found[0, 0, 1] = right[0, 0, 1]
    assert torch.equal(found, right)
    sinks = torch.full((4,), 1e4, device=device)
    assert (attention(*case.tensors, sinks=sinks) == 0).all()
    assert torch.equal(attention(*case.tensors, sinks=-sinks), right)
    check(Case([t.cpu() for t in (query, keys, values, tables, lengths)], {"scale": 1000.0}), device)


@pytest.mark.parametrize("at", [0, 511, 512, 1299])
def test_a_key_that_is_no_number_spoils_its_rows_whatever_other_keys_are(at: int) -> None:
    """On the CPU, which merges chunks of 512 keys."""
    query, keys, values, tables, lengths = plain(1, keys=1300).tensors
    right = attention(query, keys, values, tables, lengths)
    keys[tables[0, at // 8], at % 8, 1, 5] = torch.nan
    found = attention(query, keys, values, tables, lengths)
    assert found[:, :, 2:].isnan().all() and torch.equal(found[:, :, :2], right[:, :, :2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_bits_again_and_in_another_batch(dtype: Any, device: str) -> None:
    case = plain(5, 8, 2, 128, keys=700, dtype=dtype).on(device)
    first = attention(*case.tensors)
    assert all(torch.equal(attention(*case.tensors), first) for _ in range(3))


def test_the_same_with_any_number_of_threads() -> None:
    case = plain(3, 8, 2, 64, keys=1300)
    assert_same_with_any_number_of_threads(lambda: attention(*case.tensors))


# ---- what only memory says ----


@pytest.mark.parametrize(
    ("length", "block", "words"),
    [
        (41, 3, r"lengths\[1\] is 41 and the blocks of a sequence have room for 40 tokens; needed 0 to that"),
        (-1, 3, r"lengths\[1\] is -1 and"),
        (40, 10, r"block_tables\[1, 2\] is 10 and the caches have 10 blocks; needed one of these"),
        (40, -1, r"block_tables\[1, 2\] is -1 and"),
    ],
)
def test_lengths_and_blocks_are_checked_on_the_cpu(length: int, block: int, words: str) -> None:
    query, keys, values, tables, lengths = plain().tensors
    lengths[1], tables[1, 2] = length, block
    with pytest.raises(RuntimeError, match="paged_decode_attention: " + words):
        attention(query, keys, values, tables, lengths)


def test_blocks_that_are_not_reached_may_be_anything(device: str) -> None:
    case = plain(keys=40).on(device)
    query, keys, values, tables, lengths = case.tensors
    right = attention(query, keys, values, tables, lengths - 20)
    spoiled = tables.clone()
    spoiled[:, 3:] = -(10**9)
    assert torch.equal(attention(query, keys, values, spoiled, lengths - 20), right)
    right = attention(query, keys, values, tables, lengths, window=9)
    spoiled = tables.clone()
    spoiled[:, :3] = 10**9
    assert torch.equal(attention(query, keys, values, spoiled, lengths, window=9), right)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_gpu_skips_blocks_that_are_not_there_and_cuts_lengths(dtype: Any) -> None:
    case = plain(dtype=dtype)
    query, keys, values, tables, _ = case.tensors
    for wrong in (-1, 10, 2**40):
        tables[0, 1] = wrong
        check(case, "cuda")  # the reference leaves the keys of such a block out
    there = case.on("cuda")
    right = attention(*there.tensors)
    long = torch.tensor([2**40, 41], device="cuda")
    assert torch.equal(attention(*there.tensors[:4], long), right)
    assert (attention(*there.tensors[:4], -long) == 0).all()
    # Blocks before and behind the caches stay unread: NaN there changes nothing.
    rooms = [torch.cat([torch.full_like(c, torch.nan), c, torch.full_like(c, torch.nan)]) for c in (keys, values)]
    inner = [room.cuda()[10:20] for room in rooms]
    assert torch.equal(attention(query.cuda(), *inner, tables.cuda(), there.tensors[4]), right)


# ---- bad input ----

QUERY, KEYS, VALUES, TABLES, LENGTHS = range(5)
SHAPES = (
    r"query has shape {}, key_cache {} and value_cache {}; needed \(sequences, queries, heads, width\), and".format(
        *[r"\([\d, ]+\)"] * 3
    )
)
Change = dict[int | str, Any]
BAD: dict[str, tuple[Change, str]] = {
    "float64": ({QUERY: lambda t: t.double()}, "query is float64; needed float32, float16 or bfloat16"),
    "caches of integers": (
        {KEYS: lambda t: t.long()},
        "key_cache is int64 and query is float32; needed the dtype of query, float8_e4m3fn or float8_e5m2",
    ),
    "caches of another dtype": ({KEYS: lambda t: t.half()}, "key_cache is float16 and query is float32; needed the"),
    "values of another dtype": (
        {VALUES: lambda t: t.half()},
        "value_cache is float16 and key_cache is float32; needed one dtype",
    ),
    "query elsewhere": ({QUERY: lambda t: t.to("meta")}, "key_cache is on .* and query on meta; needed one device"),
    "values elsewhere": ({VALUES: lambda t: t.to("meta")}, "value_cache is on meta and key_cache on .*; needed one"),
    "tables elsewhere": ({TABLES: lambda t: t.to("meta")}, "block_tables is on meta and query on .*; needed one"),
    "lengths elsewhere": ({LENGTHS: lambda t: t.to("meta")}, "lengths is on meta and query on .*; needed one device"),
    "another width": ({QUERY: lambda t: torch.cat([t, t], -1)}, SHAPES),
    "unlike caches": ({VALUES: lambda t: t[:3]}, SHAPES),
    "values by head": ({VALUES: lambda t: t.transpose(1, 2)}, SHAPES),
    "no heads": ({KEYS: lambda t: t[:, :, 0], VALUES: lambda t: t[:, :, 0]}, SHAPES),
    "an unserved width": (
        {QUERY: lambda t: t[..., :48], KEYS: lambda t: t[..., :48]},
        "heads have 48 elements in keys and 64 in values; needed 64, 80, 96, 128, 192 or 256",
    ),
    "an unserved width of values": ({VALUES: lambda t: t[..., :16]}, "heads have 64 elements in keys and 16 in values"),
    "too many queries": ({QUERY: lambda t: t.expand(2, 17, 4, 64)}, "query has 17 queries for a sequence; needed 1 to"),
    "no queries": ({QUERY: lambda t: t[:, :0]}, "query has 0 queries for a sequence"),
    "heads that do not divide": ({QUERY: lambda t: t[:, :, :3]}, "query has 3 heads and the caches have 2; needed a"),
    "a block too large": (
        {KEYS: lambda t: t[:, :1].expand(-1, 257, -1, -1), VALUES: lambda t: t[:, :1].expand(-1, 257, -1, -1)},
        "a block has 257 tokens; needed 1 to 256",
    ),
    "tables of floats": ({TABLES: lambda t: t.float()}, "block_tables is float32; needed int32 or int64"),
    "lengths of bytes": ({LENGTHS: lambda t: t.byte()}, "lengths is uint8; needed int32 or int64"),
    "a flat table": ({TABLES: lambda t: t[0]}, r"block_tables has shape \(5,\); needed \(2, blocks of a sequence\)"),
    "tables of one": ({TABLES: lambda t: t[:1]}, r"block_tables has shape \(1, 5\); needed \(2, blocks"),
    "lengths of one": ({LENGTHS: lambda t: t[:1]}, r"lengths has shape \(1,\); needed \(2,\), a length for each"),
    "slopes of few": (
        {"alibi_slopes": lambda d: torch.ones(3, device=d)},
        r"alibi_slopes has shape \(3,\); needed \(4",
    ),
    "sinks of halves": ({"sinks": lambda d: torch.ones(4, device=d).half()}, "sinks is float16; needed float32"),
    "scales of heads": (
        {"key_scale": lambda d: torch.ones(4, device=d)},
        r"key_scale has shape \(4,\); needed \(2,\) or \(1,\), contiguous",
    ),
    "scale elsewhere": ({"value_scale": lambda d: torch.ones(1, device="meta")}, "value_scale is on meta and query on"),
    "infinite scale": ({"scale": lambda d: float("inf")}, "scale is inf; needed a finite number"),
    "negative cap": ({"softcap": lambda d: -1.0}, "softcap is -1; needed a finite number that is not negative"),
    "negative window": ({"window": lambda d: -1}, r"window is -1; needed 0 for none, to 2\^31 - 1"),
}


@pytest.mark.parametrize("softcap", [3e3, 1e6, 1e9, 3e38])
def test_a_cap_far_above_all_scores_changes_nothing(softcap: float, device: str) -> None:
    args = plain().on(device).tensors
    capped = ops.paged_decode_attention(*args, softcap=softcap)
    torch.testing.assert_close(capped, ops.paged_decode_attention(*args), rtol=2e-5, atol=2e-5)


def traced(function: Callable[..., Any], args: list[Any], options: dict[str, Any]) -> Any:
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return function(*(mode.from_tensor(t) for t in args), **options)


WAYS: dict[str, Callable[..., Any]] = {
    "kernel": lambda function, args, options: function(*args, **options),
    "traced": traced,
    "transformed": lambda function, args, options: torch.func.functionalize(function)(*args, **options),
}


@pytest.mark.parametrize("way", ["kernel", "traced", "transformed"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, way: str, device: str) -> None:
    changes, words = BAD[case]
    tensors = plain().on(device).tensors
    args = [changes.get(place, lambda t: t)(tensor) for place, tensor in enumerate(tensors)]
    options = {name: make(device) for name, make in changes.items() if isinstance(name, str)}
    if way == "traced" and any(t.is_meta for t in [*args, *options.values()] if isinstance(t, torch.Tensor)):
        words = "meta|Meta|device"  # a trace puts its own words before ours
    with pytest.raises(RuntimeError, match=words if "meta|" in words else "paged_decode_attention: " + words):
        WAYS[way](attention, args, options)


@pytest.mark.parametrize("place", [KEYS, VALUES, TABLES])
def test_views_with_elements_apart_are_refused(place: int, device: str) -> None:
    tensors = plain().on(device).tensors
    last = tensors[place].dim() - 1
    tensors[place] = tensors[place].transpose(last, last - 1).contiguous().transpose(last, last - 1)
    with pytest.raises(RuntimeError, match=r"has shape .* with strides .*; needed a contiguous last dimension"):
        attention(*tensors)


# ---- graphs ----


def arguments(device: str, **options: Any) -> tuple[Any, ...]:
    """What the op takes."""
    case = plain(queries=2, **options).on(device)
    heads = torch.arange(4, device=device, dtype=torch.float32)
    return (*case.tensors, 0.125, 20, 30.0, heads * 0.1, heads, heads[:2] + 1, None)


def test_opcheck(device: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        args = arguments(device, dtype=dtype)
        found = torch.library.opcheck(torch.ops.precast.paged_decode_attention.default, args)
        assert set(found.values()) == {"SUCCESS"}


COMPILED = """
    import torch
    from precast import ops

    device = {device!r}

    def step(query, keys, values, tables, lengths):
        result, lse = ops.paged_decode_attention(query * 2, keys, values, tables, lengths + 1, return_lse=True)
        return result.flatten(1) + 1, lse

    def fresh(sequences):
        query, caches = torch.randn(sequences, 8, 64, device=device), torch.randn(2, 12, 16, 2, 64, device=device)
        tables = torch.randperm(12, device=device)[: 3 * sequences].view(sequences, 3)
        return query, *caches, tables, torch.randint(0, 48, (sequences,), device=device)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for sequences in (3, 4):
        args = fresh(sequences)
        torch.testing.assert_close(compiled(*args), step(*args))

    class Step(torch.nn.Module):
        def forward(self, *args):
            return step(*args)

    args = fresh(3)
    program = torch.export.export(Step(), args)
    torch.testing.assert_close(program.module()(*args), step(*args))
    print("the same")
"""


def test_compile_and_export_in_a_fresh_process(device: str, run_child: Callable[[str], str]) -> None:
    assert "the same" in run_child(COMPILED.format(device=device))


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [900, 2500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lengths_change_between_the_replays_of_a_cuda_graph(dtype: Any, keys: int) -> None:
    """The plan is made on the device: nothing of it is in the graph. Short tables take one launch, long ones two."""
    case = plain(6, 8, 2, 128, keys=keys, block_size=16, dtype=dtype)
    there = case.on("cuda")
    attention(*there.tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result, lse = attention(*there.tensors, return_lse=True)
    for lengths in ([keys] * 6, [1, 0, 899, 64, 65, 300], [0] * 6, [0, 0, 0, 0, 0, 777]):
        for one in (case, there):
            one.tensors[4].copy_(torch.tensor(lengths))
            one.tensors[3].copy_(one.tensors[3].flip(1))
        graph.replay()
        torch.cuda.synchronize()
        assert_right(case, result, lse)


def test_a_gradient_is_refused(device: str) -> None:
    tensors = plain().on(device).tensors
    tensors[0].requires_grad_()
    for call in (attention, torch.compile(attention, backend="aot_eager", fullgraph=True)):
        with pytest.raises(Exception, match=r"paged_decode_attention: a gradient is wanted .* needed torch\.no_grad"):
            call(*tensors)
    with torch.no_grad():
        assert not attention(*tensors).requires_grad


def test_transforms(device: str) -> None:
    """What has no kernel there is computed by plain torch."""
    args = arguments(device)
    op = torch.ops.precast.paged_decode_attention
    right = op(*args)
    with forward_ad.dual_level():
        torch.testing.assert_close(op(*args), right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.func.functionalize(op)(*args), right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(reference.paged_decode_attention(*args), right, rtol=1e-4, atol=1e-5)
