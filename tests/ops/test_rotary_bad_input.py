"""What the rotary ops refuse, with both shapes or dtypes: by the kernel, in a trace, under a transform; in place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from tests.ops.tensors import made  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

Call = dict[str, Any]


def good(device: str) -> Call:
    """A call of tokens (5,), of 4 and 2 heads of 16 elements, all of which are rotated."""
    query, key = (made(5, heads, 16, device=device) for heads in (4, 2))
    return {"query": query, "key": key, "cos": made(5, 8, device=device), "sin": made(5, 8, device=device)}


BAD: dict[str, tuple[Callable[[Call], Call], str]] = {
    "float64": (lambda c: {"query": c["query"].double()}, "query is float64; needed float32, float16 or bfloat16"),
    "two dimensions": (lambda c: {"query": c["query"][0]}, "query has shape (4, 16); needed (..., tokens, heads, head"),
    "a key of another dtype": (
        lambda c: {"key": c["key"].half()},
        "key is float16 and query is float32; needed one dtype",
    ),
    "a key of other tokens": (
        lambda c: {"key": c["key"][:4]},
        "key has shape (4, 2, 16) and query has (5, 4, 16); needed the same but for the number of heads",
    ),
    "a key of other heads": (lambda c: {"key": c["key"][..., :8]}, "key has shape (5, 2, 8) and query has (5, 4, 16)"),
    "a key of more dimensions": (lambda c: {"key": c["key"][None]}, "key has shape (1, 5, 2, 16) and query has (5, 4"),
    "a key elsewhere": (lambda c: {"key": c["key"].to("meta")}, "key is on meta"),
    "tables of another dtype": (
        lambda c: {"cos": c["cos"].half()},
        "cos is float16 and query is float32; needed float32, or that dtype",
    ),
    "tables elsewhere": (lambda c: {"cos": c["cos"].to("meta")}, "cos is on meta"),
    "tables of two dtypes": (
        lambda c: {**{n: c[n].bfloat16() for n in ("query", "key", "sin")}},
        "sin is bfloat16 and cos is float32; needed one dtype",
    ),
    "tables of three dimensions": (lambda c: {"cos": c["cos"][None]}, "cos has shape (1, 5, 8); needed (tokens or"),
    "tables of two shapes": (lambda c: {"sin": c["sin"][:, :7]}, "sin has shape (5, 7); needed (5, 8), as cos"),
    "wider tables than heads": (
        lambda c: {n: c[n].repeat(1, 2) for n in ("cos", "sin")},
        "cos has shape (5, 16) and query has (5, 4, 16); needed at most 8 columns, half of a head",
    ),
    "tables wider than half an odd head": (
        lambda c: {name: c[name][..., :15] for name in ("query", "key")},
        "cos has shape (5, 8) and query has (5, 4, 15); needed at most 7 columns, half of a head",
    ),
    "tables of other tokens": (
        lambda c: {n: c[n][:4] for n in ("cos", "sin")},
        "cos has shape (4, 8) and query has (5, 4, 16); needed one row for each of 5 tokens, or positions",
    ),
    "positions that are floats": (
        lambda c: {"positions": torch.zeros(5, device=c["cos"].device)},
        "positions is float32; needed int32 or int64",
    ),
    "positions of other tokens": (
        lambda c: {"positions": torch.zeros(4, dtype=torch.int64, device=c["cos"].device)},
        "positions has shape (4,) and query has (5, 4, 16); needed (5,), one for each token",
    ),
    "positions elsewhere": (
        lambda c: {"positions": torch.zeros(5, dtype=torch.int64, device="meta")},
        "positions is on meta",
    ),
    "tables of nothing": (
        lambda c: {
            **{n: c[n][:0] for n in ("cos", "sin")},
            "positions": torch.zeros(5, dtype=torch.int64, device=c["cos"].device),
        },
        "cos has shape (0, 8); needed a row for each position",
    ),
}


WAYS = ("kernel", "in place", "gradient", "traced", "tangent")
# In a trace every tensor is a meta tensor, and so on one device.
CASES = [(case, way) for case in BAD for way in WAYS if not (way == "traced" and "elsewhere" in case)]


@pytest.mark.parametrize(("case", "way"), CASES)
def test_bad_input_is_one_clear_error(case: str, way: str, device: str) -> None:
    change, message = BAD[case]
    call = good(device)
    call |= change(call)
    if way == "gradient":
        call["query"].requires_grad_()
    elif way == "traced":
        call = {name: tensor.to("meta") for name, tensor in call.items()}
    query = call.pop("query")
    kept = query.detach().clone()

    def turn(query: Any) -> Any:
        return (ops.rotary_embedding_ if way == "in place" else ops.rotary_embedding)(query, **call)[0]

    with pytest.raises(RuntimeError, match=re.escape(message)) as caught:
        torch.func.jvp(turn, (query,), (torch.ones_like(query),)) if way == "tangent" else turn(query)
    assert f"rotary_embedding{'_' if way == 'in place' else ''}: " in str(caught.value)
    assert way == "traced" or torch.equal(query.detach(), kept)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("position", [-1, 7, 2_000_000_000])
def test_a_position_outside_of_the_tables_is_refused_on_the_cpu(position: int, kind: Any) -> None:
    call = good("cpu")
    call |= {name: made(7, 8) for name in ("cos", "sin")}
    kept = call["query"].clone()
    positions = torch.tensor([6, 0, 1, position, 0], dtype=kind)
    for function in (ops.rotary_embedding, ops.rotary_embedding_):
        with pytest.raises(RuntimeError, match=rf"positions\[3\] is {position} and cos has 7 rows; needed 0 to 6"):
            function(**call, positions=positions)
    assert torch.equal(call["query"], kept)


def test_a_head_that_is_too_wide_is_refused() -> None:
    wide = torch.empty(1).expand(1, 1, 1 << 28)
    with pytest.raises(RuntimeError, match=r"query has shape \(1, 1, 268435456\); needed heads of fewer than 2\^28"):
        ops.rotary_embedding(wide, None, torch.ones(1, 1), torch.ones(1, 1))


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_tables_that_require_grad_are_refused(name: str, device: str) -> None:
    call = good(device)
    call[name].requires_grad_()
    message = f"{name} requires grad, and the tables have no gradient; needed cos.detach"
    with pytest.raises(RuntimeError, match=message):
        ops.rotary_embedding(**call)
    with pytest.raises(RuntimeError, match=message):
        torch.ops.precast.rotary_embedding(*call.values(), None, False, False)
    with torch.no_grad():
        ops.rotary_embedding(**call)


@pytest.mark.parametrize("name", ["query", "key"])
@pytest.mark.parametrize("raw", [False, True])
def test_in_place_refuses_where_a_gradient_is_wanted(name: str, raw: bool, device: str) -> None:
    call = good(device)
    kept = call["query"].clone()
    call[name].requires_grad_()

    def turn() -> None:
        if raw:
            torch.ops.precast.rotary_embedding_(*call.values(), None, False, False)
        else:
            ops.rotary_embedding_(**call)

    with pytest.raises(RuntimeError, match=r"a gradient is wanted .* needed precast.ops.rotary_embedding, or torch.no"):
        turn()
    assert torch.equal(call["query"], kept)
    with torch.no_grad():
        turn()
    assert not torch.equal(call["query"], kept)


def test_in_place_is_seen_by_a_backward_that_needs_what_was_there(device: str) -> None:
    call = good(device)
    leaf = made(5, 4, 16, device=device, seed=1).requires_grad_()
    product = (leaf * call["query"]).sum()
    ops.rotary_embedding_(**call)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


OVERLAPS: dict[str, tuple[Callable[[Call], Call], str]] = {
    "one head for all": (
        lambda c: {"query": c["query"][:, :1].expand(5, 4, 16)},
        "query is written in place and has shape (5, 4, 16) with strides (64, 0, 1); needed a contiguous last",
    ),
    "columns apart": (
        lambda c: {"key": made(5, 2, 32, device=c["key"].device)[..., ::2]},
        "key is written in place and has shape (5, 2, 16) with strides (64, 32, 2)",
    ),
    "leading dimensions that do not merge": (
        lambda c: {n: c[n][None, None].repeat(3, 4, 1, 1, 1)[:, :2] for n in ("query", "key")},
        "query is written in place and has shape (3, 2, 5, 4, 16)",
    ),
    "heads that overlap": (
        lambda c: {"query": made(5, 64, device=c["key"].device).as_strided((5, 4, 16), (64, 15, 1))},
        "query is written in place and has shape (5, 4, 16) with strides (64, 15, 1)",
    ),
    "the same": (lambda c: {"key": c["query"]}, "query and key overlap in memory"),
    "heads in common": (
        lambda c: {"key": c["query"][:, 3:]},
        "query and key overlap in memory; needed two that do not, as both are written",
    ),
    "tables": (
        lambda c: {"cos": c["query"].view(5, 64)[:, :8]},
        "cos overlaps query in memory, which is written; needed its own",
    ),
    "other tables": (lambda c: {"sin": c["key"].view(5, 32)[:, 8:16]}, "sin overlaps key in memory, which is written"),
    "positions": (
        lambda c: {"positions": c["query"].view(torch.int32).view(-1)[:5].zero_()},
        "positions overlaps query in memory, which is written",
    ),
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_in_place_refuses_what_overlaps(case: str, device: str) -> None:
    change, message = OVERLAPS[case]
    call = good(device)
    call |= change(call)
    kept = {name: tensor.clone() for name, tensor in call.items()}
    with pytest.raises(RuntimeError, match=re.escape(message)):
        ops.rotary_embedding_(**call)
    assert all(torch.equal(call[name], tensor) for name, tensor in kept.items())


def test_parts_of_one_buffer_overlap_or_not(device: str) -> None:
    """Every place of a key within a packed projection, by the elements that both have."""
    room = torch.arange(5 * 8 * 16, device=device)
    query = room.as_strided((5, 4, 16), (128, 16, 1))
    cos, sin = torch.ones(5, 8, device=device), torch.zeros(5, 8, device=device)
    for start in range(0, 128, 8):
        for head in (16, 32):
            key = room.as_strided((4, 2, 16), (128, head, 1), start)
            common = bool(torch.isin(key, query).any())
            buffer = made(room.numel(), device=device)
            views = [buffer.as_strided((4, *t.shape[1:]), t.stride(), t.storage_offset()) for t in (query, key)]
            if common:
                with pytest.raises(RuntimeError, match="query and key overlap"):
                    ops.rotary_embedding_(*views, cos[:4], sin[:4])
            else:
                ops.rotary_embedding_(*views, cos[:4], sin[:4])
