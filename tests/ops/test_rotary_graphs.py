"""Rotary embedding in graphs, under autocast, over shards, at more elements than 32 bits count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast import ops  # noqa: E402
from precast.ops import rotary  # noqa: E402
from tests.ops.tensors import made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

RAW = (rotary.ROTARY_EMBEDDING, rotary.ROTARY_EMBEDDING_)


def samples(device: str) -> dict[str, tuple[Any, ...]]:
    query, key = (made(2, 5, heads, 16, device=device) for heads in (3, 1))
    cos, sin = made(5, 8, device=device), made(5, 8, device=device, seed=1)
    rows = torch.tensor([4, 0, 0, 1, 2], device=device)
    return {
        "two": (query, key, cos, sin, None, False, False),
        "one": (query, None, cos, sin, None, True, True),
        "positions": (query, key, cos[:, :3], sin[:, :3], rows, True, False),
        "gradients": (query.clone().requires_grad_(), key.clone().requires_grad_(), cos, sin, rows, False, False),
        "a gradient of one": (query, key.clone().requires_grad_(), cos, sin, None, False, True),
        "heads before tokens": (query, key.transpose(1, 2).contiguous().transpose(1, 2), cos, sin, None, False, False),
        "nothing": (query[:, :0], key[:, :0], cos[:0], sin[:0], None, False, False),
    }


@pytest.mark.parametrize("name", samples("cpu"))
def test_opcheck(name: str, device: str) -> None:
    args = samples(device)[name]
    assert set(torch.library.opcheck(RAW[0], args).values()) == {"SUCCESS"}
    if "gradient" not in name:  # refused in place
        in_place = (args[0].clone(), None if args[1] is None else args[1].clone(), *args[2:])
        assert set(torch.library.opcheck(RAW[1], in_place).values()) == {"SUCCESS"}


BLOCK = """
    import torch
    from precast import ops

    device = {device!r}
    torch.manual_seed(0)
    packed = torch.randn(6, 5, 16, device=device)
    angle = torch.randn(9, 8, device=device)
    rows = torch.arange(6, device=device)

    class Block(torch.nn.Module):
        def forward(self, packed, angle, rows):
            query, key = packed.sin().split((3, 2), 1)
            cos, sin = angle.cos(), angle.sin()
            query, key = ops.rotary_embedding(query, key, cos, sin, positions=rows)
            query, _ = ops.rotary_embedding(query, None, cos[:6], sin[:6], interleaved=True)
            return query.cos() + key.mean(1, keepdim=True)

    block = Block()

    def by_hand(packed, angle, rows):
        def turn(x, cos, sin, neighbours):
            a, b = (x[..., ::2], x[..., 1::2]) if neighbours else x.chunk(2, -1)
            turned = (a * cos - b * sin, b * cos + a * sin)
            return torch.stack(turned, -1).flatten(-2) if neighbours else torch.cat(turned, -1)

        query, key = packed.sin().split((3, 2), 1)
        taken = [table[rows].unsqueeze(1) for table in (angle.cos(), angle.sin())]
        query, key = (turn(x, *taken, False) for x in (query, key))
        query = turn(query, *(table[:6].unsqueeze(1) for table in (angle.cos(), angle.sin())), True)
        return query.cos() + key.mean(1, keepdim=True)

    def both(function):
        leaf = packed.clone().requires_grad_()
        y = function(leaf, angle, rows)
        return y, torch.autograd.grad(y.sin().sum(), leaf)[0]
"""


@pytest.mark.parametrize(
    ("backend", "dynamic"), [("aot_eager", True), pytest.param("inductor", None, marks=pytest.mark.long)]
)
def test_compile_in_a_fresh_process(
    backend: str, dynamic: bool | None, device: str, run_child: Callable[[str], str]
) -> None:
    source = (
        BLOCK
        + """
    compiled = torch.compile(block, backend={backend!r}, fullgraph=True, dynamic={dynamic})
    torch.testing.assert_close(both(compiled), both(by_hand), rtol=1e-4, atol=1e-5)

    def in_place(query, key, cos):
        ops.rotary_embedding_(query, key, cos, cos, positions=rows)
        return query + 1

    parts = [packed[:, :3].clone(), packed[:, 3:].clone()], [packed[:, :3].clone(), packed[:, 3:].clone()]
    with torch.no_grad():
        ours = torch.compile(in_place, backend={backend!r}, fullgraph=True, dynamic={dynamic})(*parts[0], angle)
        torch.testing.assert_close(ours, in_place(*parts[1], angle))
    torch.testing.assert_close(*parts)
    print("the same")
    """
    )
    assert "the same" in run_child(source.format(backend=backend, dynamic=dynamic, device=device))


def test_export_into_a_fresh_process(device: str, tmp_path: Path, run_child: Callable[[str], str]) -> None:
    path = str(tmp_path / "rotary.pt2")
    source = (
        BLOCK
        + """
    program = torch.export.export(block, (packed, angle, rows))
    assert sum("precast" in str(node.target) for node in program.graph.nodes) == 2
    torch.export.save(program, {path!r})
    """
    )
    run_child(source.format(device=device, path=path))
    load = (
        BLOCK
        + """
    import precast.ops.rotary  # the schemas
    program = torch.export.load({path!r})
    torch.testing.assert_close(program.module()(packed, angle, rows), by_hand(packed, angle, rows))
    print("loaded")
    """
    )
    assert "loaded" in run_child(load.format(device=device, path=path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_bits_under_autocast(dtype: Any, device: str) -> None:
    for args in samples(device).values():
        moved = [a.detach().to(dtype) if torch.is_tensor(a) and a.is_floating_point() else a for a in args]
        wide = [*moved[:2], *args[2:]]
        for call in (moved, wide):
            expected = RAW[0](*call)
            with torch.autocast(device, dtype=torch.bfloat16):
                found = RAW[0](*call)
            assert all(
                one.dtype == dtype and torch.equal(one, other) for one, other in zip(found, expected, strict=True)
            )


def test_load_by_name(device: str) -> None:
    for op in ("rotary_embedding", "rotary_embedding_"):
        loaded = precast.load(op, device)
        assert loaded.family == "rotary" and loaded.device == device


def test_no_other_first_call_pays_for_it(run_child: Callable[[str], str]) -> None:
    source = """
    import sys
    import torch
    from precast import ops

    ops.rms_norm(torch.ones(2, 8), torch.ones(8))
    print("precast.ops.rotary" in sys.modules, hasattr(torch.ops.precast, "rotary_embedding"))
    ops.rotary_embedding(torch.ones(1, 1, 2), None, torch.ones(1, 1), torch.ones(1, 1))
    print(hasattr(torch.ops.precast, "rotary_embedding"))
    """
    assert run_child(source).split() == ["False", "False", "True"]


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("interleaved", [False, True])
def test_capture_in_a_cuda_graph(interleaved: bool) -> None:
    query, key = (made(64, heads, 128, device="cuda") for heads in (32, 8))
    cos, sin = made(100, 64, device="cuda"), made(100, 64, device="cuda", seed=1)
    rows = torch.arange(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = ops.rotary_embedding(query, key, cos, sin, positions=rows, interleaved=interleaved)
    rows += 20  # read at each replay
    graph.replay()
    expected = ops.rotary_embedding(query, key, cos, sin, positions=rows, interleaved=interleaved)
    torch.cuda.synchronize()
    assert all(map(torch.equal, results, expected))


@pytest.mark.large
@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1], ids=["vectors", "pairs"])
def test_more_elements_than_32_bits_count(offset: int) -> None:
    """More tokens than a launch takes where each pair is a unit of its own."""
    tokens = (1 << 31) // (8 * 64) + 3
    room = torch.empty(tokens * 8 * 64 + offset, dtype=torch.bfloat16, device="cuda").normal_()
    x = room[offset:].view(tokens, 8, 64)
    cos, sin = made(7, 32, device="cuda"), made(7, 32, device="cuda", seed=1)
    rows = torch.arange(tokens, device="cuda") % 7
    y, _ = ops.rotary_embedding(x, None, cos, sin, positions=rows)
    for token in (0, tokens // 2, tokens - 1):
        one, _ = ops.rotary_embedding(x[token : token + 1].clone(), None, cos, sin, positions=rows[token : token + 1])
        assert torch.equal(y[token : token + 1], one)
    ops.rotary_embedding_(x, None, cos, sin, positions=rows)
    assert torch.equal(x, y)
