"""Mixture of experts: gating, places and rows compared with float64, gradients, ties, and the words of refusals."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops.moe import reference  # noqa: E402
from tests.ops.tensors import made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

ops.define("moe")
RAW = torch.ops.precast
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MODELS: dict[str, tuple[Callable[..., Any], int, dict[str, Any]]] = {
    "DeepSeek-V3": (ops.topk_sigmoid, 8, {"groups": 8, "kept_groups": 4, "renormalize": True, "scale": 2.5}),
    "DeepSeek-V2": (ops.topk_softmax, 6, {"groups": 8, "kept_groups": 3, "group_score": "max", "scale": 16.0}),
    "Qwen3": (ops.topk_softmax, 8, {"renormalize": True}),
    "Mixtral": (ops.topk_softmax, 2, {}),
}


def drawn(draw: random.Random) -> tuple[int, int, tuple[Any, ...]]:
    """Tokens, experts and the options of a gating."""
    experts = draw.choice([1, 2, 7, 8, 12, 60, 64, 128, 160, 256, 384, 512, 1024])
    groups = draw.choice([g for g in (1, 1, 2, 4, 8, 16) if experts % g == 0])
    kept = draw.randint(1, groups)
    k = draw.randint(1, min(10, experts // groups * kept))
    return draw.choice([0, 1, 2, 5, 33]), experts, (k, groups, kept, *(draw.random() < 0.5 for _ in range(3)), 1.5)


def close(found: Any, exact: Any, dtype: Any, *, terms: float = 1.0) -> None:
    """Within a few roundings of numbers as large as ``terms``."""
    digits = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(found.double().cpu(), exact.cpu(), rtol=digits, atol=digits * terms)


@pytest.mark.parametrize("part", range(10))
def test_gating_of_generated_cases(part: int, device: str) -> None:
    """Ids as in float64 unless scores are as close as roundings; weights and gradients as in float64; the same bits."""
    draw = random.Random(part)
    for case in range(60):
        tokens, experts, options = drawn(draw)
        dtype = draw.choice(DTYPES)
        logits = (2 * made(tokens, experts, seed=case)).to(device, dtype)
        bias = (0.1 * made(experts, seed=1)).to(device) if draw.random() < 0.5 else None
        weights, ids = RAW.topk_gating(logits, bias, *options)
        again = RAW.topk_gating(logits, bias, *options)
        assert torch.equal(weights, again[0]) and torch.equal(ids, again[1])
        exact, wanted = reference.topk_gating(logits.double(), None if bias is None else bias.double(), *options)
        same = (ids == wanted).all(-1)
        assert weights.dtype == torch.float32 and ids.dtype == torch.int32
        if bias is None and options[1] == 1:
            assert bool(same.all())  # chosen by logits, without a rounding
        else:
            assert int((~same).sum()) <= 1
        close(weights[same], exact[same], torch.float32)
        grad = made(tokens, options[0], seed=2).to(device)
        slope = RAW.topk_gating_backward(grad, logits, ids, *options[4:])
        theirs = reference.topk_gating_backward(grad.double(), logits.double(), ids, *options[4:])
        assert slope.dtype == dtype
        close(slope, theirs, dtype, terms=5.0)


@pytest.mark.parametrize("part", range(10))
def test_places_and_rows_of_generated_cases(part: int, device: str) -> None:
    draw = random.Random(100 + part)
    for case in range(40):
        tokens, experts, (k, *_) = drawn(draw)
        ids = torch.randint(-1, experts, (tokens, k), generator=torch.Generator().manual_seed(case)).to(device)
        ids = ids.int() if draw.random() < 0.5 else ids
        for size in (1, draw.choice([2, 16, 64, 100])):
            found = RAW.moe_align_block_size(ids, experts, size)
            assert all(map(torch.equal, found, reference.moe_align_block_size(ids, experts, size)))
        positions, ends = RAW.moe_positions(ids, experts)
        assert all(map(torch.equal, (positions, ends), reference.moe_positions(ids, experts)))
        dtype, width = draw.choice(DTYPES), draw.choice([1, 8, 24, 100, 512])
        rows = made(tokens, width, seed=case).to(device, dtype)
        spread = RAW.moe_permute_rows(rows, positions, tokens * k, True)
        assert torch.equal(spread, reference.moe_permute_rows(rows, positions, tokens * k, True))
        weights = made(tokens, k, seed=3).to(device) if draw.random() < 0.7 else None
        wide = None if weights is None else weights.double()
        y = RAW.moe_combine_rows(spread, positions, weights, True)
        assert torch.equal(y, RAW.moe_combine_rows(spread, positions, weights, True))
        close(y, reference.moe_combine_rows(spread.double(), positions, wide, True), dtype, terms=10.0)
        if weights is not None and wide is not None:
            grad = made(tokens, width, seed=4).to(device, dtype)
            slopes = RAW.moe_combine_rows_backward(grad, spread, positions, weights, True)
            args = (grad.double(), spread.double(), positions, wide, True)
            exact = reference.moe_combine_rows_backward(*args)
            close(slopes[0], exact[0], dtype, terms=3.0)
            close(slopes[1], exact[1], torch.float32, terms=30.0)


@pytest.mark.parametrize("model", MODELS)
def test_models_as_they_are_written(model: str, device: str) -> None:
    """What the papers' code computes, step by step."""
    function, k, options = MODELS[model]
    logits, bias = made(20, 64 if model == "Mixtral" else 256, device=device), None
    scores = logits.double().sigmoid() if function is ops.topk_sigmoid else logits.double().softmax(-1)
    choice = scores
    if model == "DeepSeek-V3":
        bias = 0.1 * made(256, seed=1, device=device)
        choice = scores + bias
    if "groups" in options:
        grouped = choice.view(20, options["groups"], -1)
        of_groups = grouped.amax(-1) if model == "DeepSeek-V2" else grouped.topk(2, -1)[0].sum(-1)
        kept = torch.zeros_like(of_groups).scatter(1, of_groups.topk(options["kept_groups"], -1)[1], 1)
        choice = grouped.masked_fill(kept.unsqueeze(-1) == 0, -torch.inf).flatten(1)
    ids = choice.topk(k, -1)[1]
    weights = scores.gather(1, ids)
    weights = weights / weights.sum(-1, keepdim=True) if options.get("renormalize") else weights
    found, chosen = function(logits, k, bias=bias, **options)
    assert torch.equal(chosen.long(), ids)
    close(found, weights * options.get("scale", 1.0), torch.float32)
    top, best = logits.double().topk(4, -1)  # gpt-oss: first the choice, then a softmax over it
    found, chosen = ops.topk_softmax(logits, 4, renormalize=True)
    assert torch.equal(chosen.long(), best)
    close(found, top.softmax(-1), torch.float32)


def test_shares_of_a_thousand_experts(device: str) -> None:
    """Sums over all experts have the error of a few roundings, not of a thousand."""
    logits = made(64, 1021, device=device)
    weights, ids = ops.topk_softmax(logits, 8)
    exact = logits.double().softmax(-1).gather(1, ids.long())
    torch.testing.assert_close(weights.double(), exact, rtol=1e-6, atol=0)
    grad = made(64, 8, seed=1, device=device)
    double = logits.double().requires_grad_()
    (wanted,) = torch.autograd.grad(double.softmax(-1).gather(1, ids.long()), double, grad.double())
    found = RAW.topk_gating_backward(grad, logits, ids, False, False, 1.0)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-9)


def test_ties_go_to_the_lower_index(device: str) -> None:
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor([[0.0, -0.0, 0.0, -1.0], [1.0, nan, 2.0, nan], [-inf, -inf, 3.0, -inf]], device=device)
    for function in (ops.topk_softmax, ops.topk_sigmoid):
        assert function(rows, 3)[1].tolist() == [[0, 1, 2], [1, 3, 2], [2, 0, 1]]
        assert function(torch.zeros(12, device=device), 4, groups=4, kept_groups=2)[1].tolist() == [0, 1, 2, 3]
        assert function(torch.full((6,), -inf, device=device), 2, groups=3, kept_groups=1)[1].tolist() == [0, 1]


def test_sigmoids_that_vanish_share_nothing(device: str) -> None:
    """Their sum has 1e-20 added to it, as in DeepSeek-V3."""
    # fails if a weight differs from its share in double precision
    for low in (-40.0, -80.0, -1e4, -torch.inf):
        weights, _ = ops.topk_sigmoid(torch.full((2, 8), low, device=device), 2, renormalize=True)
        share = torch.tensor(low).double().sigmoid()
        close(weights, (share / (2 * share + 1e-20)).expand(2, 2), torch.float32)


def test_any_leading_dimensions(device: str) -> None:
    logits = made(2, 3, 5, 9, device=device)
    weights, ids = ops.topk_softmax(logits.transpose(0, 1), 2)
    assert weights.shape == ids.shape == (3, 2, 5, 2)
    assert torch.equal(ids.transpose(0, 1), ops.topk_softmax(logits, 2)[1])
    assert ops.topk_sigmoid(logits[0, 0, 0], 1)[0].shape == (1,)


def test_alignment_by_hand(device: str) -> None:
    """VLLM's own example of the function: four experts, blocks of four, three experts for each token.

    As there, blocks that are not in use name expert 0.
    """
    ids = torch.tensor([[2, 3, 4], [1, 2, 4], [1, 3, 4], [1, 2, 3]], device=device) - 1
    sorted_ids, experts, total = ops.moe_align_block_size(ids, 4, 4)
    wanted = [3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12, 2, 5, 8, 12]
    assert total.tolist() == [16] and sorted_ids[:16].tolist() == wanted and experts[:4].tolist() == [0, 1, 2, 3]
    assert sorted_ids.shape == (24,) and set(sorted_ids[16:].tolist()) == {12} and experts[4:].tolist() == [0, 0]
    nothing = ops.moe_align_block_size(ids[:0], 4, 4)
    assert [part.numel() for part in nothing] == [0, 0, 1] and nothing[2].tolist() == [0]


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_of_experts_at_multiples(size: int, dtype: Any, device: str) -> None:
    """With align_block_size: the order of the rows without it, and zeros between the experts."""
    ids = torch.randint(-1, 7, (9, 3), generator=torch.Generator().manual_seed(size)).to(device, dtype)
    ids[ids == 4] = 5  # an expert without rows
    x = made(9, 8, device=device).requires_grad_()
    plain, places, plain_ends = ops.moe_permute(x, ids, 7)
    rows, positions, ends = ops.moe_permute(x, ids, 7, align_block_size=size)
    assert rows.shape[0] % size == 0 and rows.shape[0] >= 27 + 7 * (size - 1)
    assert ends.dtype == positions.dtype == torch.int32 and not (ends % size).any()
    counts = plain_ends.diff(prepend=plain_ends.new_zeros(1))
    assert torch.equal(ends.diff(prepend=ends.new_zeros(1)), (counts + size - 1) // size * size)
    wanted = torch.zeros_like(rows)
    for expert, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
        start, old = end - -(-count // size) * size, int(plain_ends[expert]) - count
        wanted[start : start + count] = plain[old : old + count]
    assert torch.equal(rows, wanted)
    assert torch.equal(positions < 0, places < 0)
    used = torch.where(positions < 0, ~positions, positions).flatten()
    assert used.unique().numel() == 27 and int(used.max()) < rows.shape[0]
    assert torch.equal(ops.moe_unpermute(rows, positions), ops.moe_unpermute(plain, places))
    grad = made(*rows.shape, device=device)
    (found,) = torch.autograd.grad(rows, x, grad)
    kept = (positions >= 0).unsqueeze(-1)
    close = (grad[positions.clamp(min=0).long()] * kept).sum(1)
    torch.testing.assert_close(found, close)
    none = ops.moe_permute(x[:0], ids[:0], 7, align_block_size=size)
    assert none[0].shape == (0, 8) and not none[2].any()
    for wrong, text in ((0, "align_block_size is 0; needed 1 or more"), (2**30, "slots; needed 0 to 2")):
        with pytest.raises(RuntimeError, match=text):
            ops.moe_permute(x, ids, 7, align_block_size=wrong)


def test_what_is_left_out_is_zero(device: str) -> None:
    x = made(3, 8, device=device)
    ids = torch.tensor([[1, -1], [-5, -1], [0, 1]], device=device)
    rows, positions, ends = ops.moe_permute(x, ids, 2)
    assert positions.tolist() == [[1, ~3], [~4, ~5], [0, 2]] and ends.tolist() == [1, 3]
    assert torch.equal(rows, torch.cat((x[[2, 0, 2]], torch.zeros_like(x))))
    back = ops.moe_unpermute(torch.cat((rows[:3], torch.full_like(x, float("nan")))), positions)
    assert torch.equal(back, torch.stack((x[0], torch.zeros_like(x[0]), 2 * x[2])))


def test_gradients_of_every_order() -> None:
    """The references in float64 against numbers, and the ops' gradients against those of the references."""
    ids = torch.tensor([[0, 2], [-1, 1], [1, 0]])
    positions, _ = reference.moe_positions(ids, 3)
    double = {"dtype": torch.float64, "requires_grad": True}
    rows, weights, x = (torch.randn(*shape, **double) for shape in ((6, 3), (3, 2), (3, 3)))
    checks = (torch.autograd.gradcheck, torch.autograd.gradgradcheck)
    for check in checks:
        assert check(lambda r, w: reference.moe_combine_rows(r, positions, w, True), (rows, weights))
        assert check(lambda r: reference.moe_permute_rows(r, positions, 6, True), (x,))
        for sigmoid, renormalize in ((False, False), (False, True), (True, False), (True, True)):
            options = (2, 1, 1, True, sigmoid, renormalize, 1.5)
            assert check(lambda r: reference.topk_gating(r, None, *options)[0], (rows,))  # noqa: B023 - called at once
    names = ("topk_gating", "moe_combine_rows", "moe_permute_rows")
    for name in names:
        leaves = [t.detach().float().requires_grad_() for t in (rows, weights, x)]
        args = {
            "topk_gating": (leaves[0], None, 2, 1, 1, True, True, True, 1.5),
            "moe_combine_rows": (leaves[0], positions, leaves[1], True),
            "moe_permute_rows": (leaves[2], positions, 6, True),
        }[name]
        found = []
        for function in (getattr(RAW, name), getattr(reference, name)):
            y = function(*args)
            y = y[0] if isinstance(y, tuple) else y
            used = [leaf for leaf in leaves if any(leaf is arg for arg in args)]
            first = torch.autograd.grad(y.square().sum(), used, create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in first), used)
            found.append((*first, *second))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_some_rows_belong_to_no_pair(device: str) -> None:
    """Their gradient is zero."""
    rows = made(5, 8, device=device).requires_grad_()
    positions = torch.tensor([[3, 1]], dtype=torch.int32, device=device)
    weights = torch.tensor([[2.0, 0.5]], device=device)
    for given in (weights, weights.bfloat16(), None):
        y = ops.moe_unpermute(rows, positions, given)
        (grad,) = torch.autograd.grad(y.sum(), rows)
        factors = [2.0, 0.5] if given is not None else [1.0, 1.0]
        assert grad[:, 0].tolist() == [0.0, factors[1], 0.0, factors[0], 0.0]


@pytest.mark.gpu
def test_values_that_do_not_exist_are_left_out_on_a_gpu() -> None:
    ids = torch.tensor([[0, 7], [2**40, 1]], device="cuda")
    positions, ends = RAW.moe_positions(ids, 2)
    assert positions.tolist() == [[0, ~2], [~3, 1]] and ends.tolist() == [1, 2]
    places = torch.tensor([[9, 0]], dtype=torch.int32, device="cuda")
    y = RAW.moe_combine_rows(torch.ones(2, 8, device="cuda"), places, None, True)
    assert torch.equal(y.cpu(), torch.ones(1, 8))


@pytest.mark.gpu
def test_captured_in_a_graph() -> None:
    """A replay routes what is then in its input; nothing waits for the GPU."""

    def layer(x: Any, logits: Any) -> Any:
        weights, ids = ops.topk_softmax(logits, 2, renormalize=True)
        rows, positions, _ = ops.moe_permute(x, ids, 16)
        return ops.moe_unpermute(rows, positions, weights), *ops.moe_align_block_size(ids, 16, 8)

    x, logits = made(33, 64, device="cuda"), made(33, 16, device="cuda")
    layer(x, logits)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(x, logits)
    logits.copy_(made(33, 16, seed=1, device="cuda"))
    graph.replay()
    assert all(map(torch.equal, captured, layer(x, logits)))


@pytest.mark.large
@pytest.mark.gpu
def test_more_than_2_to_the_31_elements() -> None:
    tokens, width = 2**19 + 3, 4096
    x = torch.zeros(tokens, width, dtype=torch.bfloat16, device="cuda")
    x[:, 0] = torch.arange(tokens, device="cuda") % 251
    x[-1] = 7
    ids = (torch.arange(tokens, device="cuda") % 3).view(-1, 1)
    rows, positions, ends = ops.moe_permute(x, ids, 3)
    assert rows.numel() > 2**31 and ends.tolist()[-1] == tokens
    assert torch.equal(rows[positions.flatten().long()[-1]], x[-1])
    assert torch.equal(ops.moe_unpermute(rows, positions), x)
