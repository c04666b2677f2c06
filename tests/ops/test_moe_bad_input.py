"""What the ops for a mixture of experts refuse, in which words, and that nothing was written before."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops import _folders  # noqa: E402
from tests.ops.tensors import made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

ops.define("moe")
RAW = torch.ops.precast
IDS, PLACES = torch.tensor([[0, 1]]), torch.tensor([[0, 1]], dtype=torch.int32)
MANY = torch.zeros(1, dtype=torch.int32).expand(2**15, 2**16)  # of 2^31 elements, in four bytes
ROWS, WEIGHTS = made(2, 4), made(1, 2)


def gating(logits: Any = None, bias: Any = None, **changes: Any) -> tuple[Any, ...]:
    given = {"k": 2, "groups": 1, "kept_groups": 1, **changes}
    return (made(3, 8) if logits is None else logits, bias, *given.values(), True, False, False, 1.0)


BAD = [
    ("topk_gating", gating(made(3, 8).double()), "logits is float64; needed float32, float16 or bfloat16"),
    ("topk_gating", gating(torch.tensor(1.0)), "logits has shape (); needed at least one dimension"),
    ("topk_gating", gating(made(3, 0)), "logits has 0 experts; needed 1 to 1024"),
    ("topk_gating", gating(made(1, 1025)), "logits has 1025 experts; needed 1 to 1024"),
    ("topk_gating", gating(k=0), "k is 0; needed 1 to 8, the experts in reach"),
    ("topk_gating", gating(k=9), "k is 9; needed 1 to 8, the experts in reach"),
    ("topk_gating", gating(k=3, groups=4), "k is 3; needed 1 to 2, the experts in reach"),
    ("topk_gating", gating(groups=3), "3 groups of 8 experts; needed a divisor of the number of experts"),
    ("topk_gating", gating(groups=0), "0 groups of 8 experts; needed a divisor of the number of experts"),
    ("topk_gating", gating(kept_groups=2), "kept_groups is 2; needed 1 to 1, the number of groups"),
    ("topk_gating", gating(bias=made(8).half()), "bias is float16; needed float32"),
    ("topk_gating", gating(bias=made(7)), "bias has shape (7,); needed (8,), a number for each expert"),
    (
        "topk_gating_backward",
        (made(3, 2), made(3, 8), torch.zeros(3, 2).long(), False, False, 1.0),
        "topk_ids is int64; needed int32",
    ),
    (
        "topk_gating_backward",
        (made(3, 2), made(2, 8), torch.zeros(3, 2).int(), False, False, 1.0),
        "topk_ids has shape (3, 2) and logits (2, 8); needed 1 to 8 experts for each row",
    ),
    (
        "topk_gating_backward",
        (made(3, 1), made(3, 8), torch.zeros(3, 2).int(), False, False, 1.0),
        "grad has shape (3, 1); needed (3, 2), as topk_ids",
    ),
    ("moe_permute_few", (ROWS.double(), IDS, 2), "rows is float64; needed float32, float16 or bfloat16"),
    ("moe_permute_few", (ROWS, IDS.float(), 2), "topk_ids is float32; needed int32 or int64"),
    (
        "moe_permute_few",
        (ROWS, IDS.expand(8193, 2), 2),
        "topk_ids has shape (8193, 2); needed 1 or more for a token, 16384 in all",
    ),
    ("moe_permute_few", (ROWS, IDS[:, :0], 2), "topk_ids has shape (1, 0); needed 1 or more for a token, 16384 in all"),
    ("moe_permute_few", (ROWS, IDS, 2), "topk_ids has shape (1, 2) and rows (2, 4); needed as many rows"),
    ("moe_positions", (IDS.float(), 2), "topk_ids is float32; needed int32 or int64"),
    ("moe_positions", (IDS[0], 2), "topk_ids has shape (2,); needed (tokens, k)"),
    ("moe_positions", (IDS, 0), "experts is 0; needed 1 to 1024"),
    ("moe_positions", (IDS, 1025), "experts is 1025; needed 1 to 1024"),
    ("moe_positions", (MANY, 2), "topk_ids has shape (32768, 65536); needed fewer than 2^31 elements"),
    ("moe_align_block_size", (IDS, 2, 0), "block_size is 0; needed 1 or more"),
    (
        "moe_align_block_size",
        (IDS, 2, 2**30 + 1),
        "2 pairs in blocks of 1073741825 for 2 experts may need 2147483650 slots; needed fewer than 2^31",
    ),
    ("moe_permute_rows", (made(2, 4).long(), PLACES, 2, True), "rows is int64; needed float32, float16 or bfloat16"),
    ("moe_permute_rows", (made(4), PLACES, 2, True), "rows has shape (4,); needed two dimensions"),
    ("moe_permute_rows", (made(1, 4), IDS, 2, True), "positions is int64; needed int32"),
    ("moe_permute_rows", (made(1, 4), PLACES, -1, False), "-1 slots; needed 0 to 2^31 - 1"),
    (
        "moe_permute_rows",
        (made(2, 4), PLACES, 2, True),
        "positions has shape (1, 2) and rows (2, 4); needed as many",
    ),
    (
        "moe_permute_rows",
        (made(1, 4), PLACES, 3, True),
        "positions has shape (1, 2) and there are 3 slots; needed one position for each slot",
    ),
    ("moe_combine_rows", (ROWS, PLACES[0], None, True), "positions has shape (2,); needed (tokens, k) with k of 1 or"),
    ("moe_combine_rows", (ROWS, PLACES[:, :0], None, False), "positions has shape (1, 0); needed (tokens, k) with k"),
    (
        "moe_combine_rows",
        (ROWS, MANY, None, False),
        "positions has shape (32768, 65536); needed fewer than 2^31 elements",
    ),
    ("moe_combine_rows", (ROWS, PLACES, WEIGHTS.half(), True), "weights is float16; needed float32"),
    ("moe_combine_rows", (ROWS, PLACES, WEIGHTS[0], True), "weights has shape (2,); needed (1, 2), as positions"),
    (
        "moe_combine_rows_backward",
        (made(2, 4), ROWS, PLACES, WEIGHTS, True),
        "grad has shape (2, 4); needed (1, 4), a row for each token",
    ),
    (
        "moe_combine_rows_backward",
        (made(1, 4).half(), ROWS, PLACES, WEIGHTS, True),
        "grad is float16 and rows is float32; needed one dtype",
    ),
]


@pytest.mark.parametrize(("op", "args", "text"), BAD, ids=[f"{op}-{text[:30]}" for op, _, text in BAD])
def test_bad_input(op: str, args: tuple[Any, ...], text: str) -> None:
    """The kernel and its fake use the same words."""
    with pytest.raises(RuntimeError) as ours:
        getattr(RAW, op)(*args)
    assert str(ours.value).startswith(f"{op}: {text}")
    on_meta = [arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in args]
    with pytest.raises(RuntimeError) as fake:
        getattr(RAW, op)(*on_meta)
    assert str(fake.value).startswith(f"{op}: {text}")


@pytest.mark.parametrize(
    "op", ["topk_gating", "topk_gating_backward", "moe_permute_few", "moe_permute_rows", "moe_combine_rows_backward"]
)
def test_two_devices(op: str) -> None:
    first, *rest = _folders.arguments(op)
    args = [first, *(arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in rest)]
    with pytest.raises(RuntimeError, match=r"on (meta|cpu).*needed one device|conflicting devices|same device"):
        getattr(RAW, op)(*args)


@pytest.mark.parametrize(
    ("op", "args", "text"),
    [
        ("moe_positions", (torch.tensor([[0, 3]]), 3), "topk_ids has the expert 3 of 3; needed one of these"),
        ("moe_align_block_size", (torch.tensor([[2**40, 1]]), 3, 4), "topk_ids has the expert 1099511627776 of 3"),
        (
            "topk_gating_backward",
            (made(1, 1), made(1, 4), PLACES[:, :1] - 1, True, True, 1.0),
            "has the expert -1 of 4",
        ),
        ("moe_permute_few", (made(1, 4), torch.tensor([[0, 3]]), 3), "topk_ids has the expert 3 of 3; needed one"),
        ("moe_permute_rows", (made(1, 4), PLACES + 1, 2, True), "positions has 2 and there are 2 slots"),
        ("moe_permute_rows", (made(1, 4), ~(PLACES + 1), 2, True), "positions has -3 and there are 2 slots"),
        ("moe_combine_rows", (ROWS, PLACES + 1, None, False), "positions has 2 and there are 2 slots"),
        (
            "moe_combine_rows_backward",
            (made(1, 4), ROWS, PLACES + 1, WEIGHTS, False),
            "positions has 2 and there are 2",
        ),
    ],
    ids=["positions", "align", "gating", "permute few", "permute", "permute left out", "combine", "combine backward"],
)
def test_values_are_checked_on_the_cpu(op: str, args: tuple[Any, ...], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        getattr(RAW, op)(*args)


def test_a_group_score_without_a_meaning() -> None:
    with pytest.raises(ValueError, match="group_score is 'top3'; needed one of 'top2', 'max'"):
        ops.topk_softmax(made(2, 8), 2, group_score="top3")


POSITIONS = {
    "as they should be": [[1, 0], [3, 2]],
    "left out": [[1, ~0], [3, 2]],
    "negative": [[1, -9], [3, -1]],
    "repeated": [[1, 0], [1, 1]],
    "both": [[1, -1], [1, 2]],
    "fewer": [[3, 1]],
    "more": [[0, 1, 2], [3, 1, 0]],
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
def test_gradients_for_any_positions(positions: list[list[int]], weighted: bool, device: str) -> None:
    """A row's gradient is the sum of what its pairs give to it, however many pairs that is."""
    places = torch.tensor(positions, dtype=torch.int32, device=device)
    rows, weights = made(4, 40, device=device).requires_grad_(), made(*places.shape, device=device).requires_grad_()
    spoiled = [torch.full((4, 40), float("nan"), device=device) for _ in range(9)]  # memory that comes back as results
    del spoiled
    y = ops.moe_unpermute(rows, places, weights if weighted else None)
    grad = made(*y.shape, seed=3, device=device)
    found = torch.autograd.grad(y, (rows, weights) if weighted else (rows,), grad)
    taken = rows[places.clamp(min=0).long()] * (places >= 0).unsqueeze(-1)
    exact = (taken * weights.unsqueeze(-1) if weighted else taken).sum(1)
    torch.testing.assert_close(y, exact)
    torch.testing.assert_close(found, torch.autograd.grad(exact, (rows, weights) if weighted else (rows,), grad))


def test_positions_that_were_changed_are_not_trusted(device: str) -> None:
    rows, places, _ = ops.moe_permute(made(3, 8, device=device), torch.tensor([[0], [1], [0]], device=device), 2)
    places.fill_(2)
    rows.requires_grad_()
    ops.moe_unpermute(rows, places).sum().backward()
    assert rows.grad.tolist() == [[0.0] * 8, [0.0] * 8, [3.0] * 8]


def test_rows_without_columns(device: str) -> None:
    rows, weights = torch.empty(2, 0, device=device).requires_grad_(), made(1, 2, device=device).requires_grad_()
    places = torch.tensor([[0, 1]], dtype=torch.int32, device=device)
    for given in (None, weights):
        ops.moe_unpermute(rows, places, given).sum().backward()
    assert rows.grad.shape == (2, 0) and weights.grad.tolist() == [[0.0, 0.0]]
