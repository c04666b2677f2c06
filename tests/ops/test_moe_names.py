"""The older package's functions for a mixture of experts, against one-hot products in float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import kernel_loader, ops  # noqa: E402
from tests.ops.tensors import made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

TOKENS, EXPERTS, CAPACITY, WIDTH = 9, 4, 3, 10
SLOTS = EXPERTS * CAPACITY


@pytest.fixture(params=["cpu", "torch", pytest.param("cuda", marks=pytest.mark.gpu)])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def module(kind: str) -> Any:
    return kernel_loader.MoeLoader().load(ext_name=f"moe_{kind}")


@pytest.fixture
def where(kind: str) -> str:
    return "cuda" if kind == "cuda" else "cpu"


def routed(module: Any, k: int, where: str) -> tuple[Any, Any]:
    """As the older package's routers do: a mask and places; tokens beyond an expert's capacity are dropped."""
    generator = torch.Generator().manual_seed(k)
    order = torch.rand(TOKENS, EXPERTS, generator=generator).argsort(1)[:, :k].to(where)
    masks, places, taken = [], [], torch.zeros(EXPERTS, dtype=torch.int32, device=where)
    for j in range(k):
        mask = torch.nn.functional.one_hot(order[:, j], EXPERTS).int()
        rank = module.cumsum_sub_one(mask) + taken
        assert rank.dtype == torch.int32
        taken = taken + mask.sum(0, dtype=torch.int32)
        rank = (rank * mask).sum(1)
        masks.append(rank < CAPACITY)
        places.append(order[:, j] * CAPACITY + rank)
    return torch.stack(masks).int(), torch.stack(places).int()


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_dispatch_and_combine(module: Any, where: str, k: int, dtype: Any) -> None:
    mask, places = routed(module, k, where)
    assert int((mask == 0).sum()) > 0 or k == 1
    tokens, logits = made(TOKENS, WIDTH, dtype=dtype, device=where), made(TOKENS, EXPERTS, seed=1, device=where)
    rows, grad = (made(*shape, WIDTH, dtype=dtype, device=where, seed=2) for shape in ((SLOTS,), (TOKENS,)))
    chosen = torch.nn.functional.one_hot(places.clamp(max=SLOTS - 1).long(), SLOTS) * mask.unsqueeze(-1)
    plan = chosen.sum(0).double()  # (tokens, slots)
    found = module.dispatch_forward(TOKENS, SLOTS, WIDTH, tokens, mask, places)
    assert found.dtype == dtype and torch.equal(found.double(), plan.t() @ tokens.double())
    leaves = [t.double().requires_grad_() for t in (rows, logits)]
    y = (plan * leaves[1].repeat_interleave(CAPACITY, 1)) @ leaves[0]
    digits = 1e-5 if dtype == torch.float32 else 3e-2

    def close(ours: Any, exact: Any) -> None:
        torch.testing.assert_close(ours.double(), exact.detach(), rtol=digits, atol=digits)

    back = module.dispatch_backward(TOKENS, SLOTS, WIDTH, rows.view(EXPERTS, CAPACITY, WIDTH), mask, places)
    close(back, plan @ rows.double())
    sizes = (TOKENS, EXPERTS, CAPACITY, WIDTH)
    close(module.combine_forward(*sizes, rows, logits, mask, places), y)
    grads = module.combine_backward(*sizes, grad, rows, logits, mask, places)
    for ours, exact in zip(grads, torch.autograd.grad(y, leaves, grad.double()), strict=True):
        close(ours, exact)
    assert grads[0].dtype == dtype and grads[1].dtype == torch.float32


def test_a_place_without_a_mask_may_hold_anything(module: Any, where: str) -> None:
    mask = torch.tensor([[1, 0]], device=where)
    places = torch.tensor([[2, 10**6]], device=where)
    tokens, logits = made(2, 8, device=where), made(2, 2, seed=1, device=where)
    rows = module.dispatch_forward(2, 4, 8, tokens, mask, places)
    assert torch.equal(rows[2], tokens[0]) and not rows[[0, 1, 3]].any()
    y = module.combine_forward(2, 2, 2, 8, rows, logits, mask, places)
    assert torch.equal(y[0], rows[2] * logits[0, 1]) and not y[1].any()
    _, slope = module.combine_backward(2, 2, 2, 8, tokens, rows, logits, mask, places)
    assert slope[1].tolist() == [0.0, 0.0] and slope[0, 0] == 0 and slope[0, 1] != 0


def test_a_place_beyond_int32_is_no_small_one(module: Any, where: str, kind: str) -> None:
    mask, places = torch.ones(1, 2, dtype=torch.int32, device=where), torch.tensor([[1, 2**32]], device=where)
    if kind == "cpu":
        with pytest.raises(RuntimeError, match="positions has 2147483647 and there are 4 slots"):
            module.dispatch_forward(2, 4, 8, made(2, 8), mask, places)
        return
    rows = module.dispatch_forward(2, 4, 8, made(2, 8, device=where), mask, places)
    assert rows[1].any() and not rows[[0, 2, 3]].any()


def test_nothing_to_combine(module: Any, where: str) -> None:
    """Rows without columns, and experts without room."""
    mask, places = (
        torch.zeros(1, 2, dtype=torch.int32, device=where),
        torch.zeros(1, 2, dtype=torch.int32, device=where),
    )
    logits = made(2, 2, device=where)
    for c, h in ((2, 0), (0, 8), (0, 0)):
        rows, tokens = torch.empty(2 * c, h, device=where), torch.ones(2, h, device=where)
        assert not module.combine_forward(2, 2, c, h, rows, logits, mask, places).any()
        grad_rows, grad_logits = module.combine_backward(2, 2, c, h, tokens, rows, logits, mask, places)
        assert grad_rows.shape == (2 * c, h) and not grad_logits.any()


def test_what_is_refused(module: Any, where: str) -> None:
    mask = torch.ones(1, 3, dtype=torch.int32, device=where)
    with pytest.raises(ValueError, match=r"mask has shape \(1, 3\) and dest_idx \(1, 3\); needed \(k, 2\) for both"):
        module.dispatch_forward(2, 4, 8, made(2, 8, device=where), mask, mask)
    places, rows = torch.zeros(1, 2, dtype=torch.int64, device=where), made(4, 8, device=where)
    for logits in (made(2, 3, device=where), made(1, 2, device=where)):
        with pytest.raises(ValueError, match=r"logits has shape .*; needed \(2, 2\), a number for each expert"):
            module.combine_forward(2, 2, 2, 8, rows, logits, places + 1, places)
        with pytest.raises(ValueError, match=r"needed \(2, 2\), a number for each expert"):
            module.combine_backward(2, 2, 2, 8, rows[:2], rows, logits, places + 1, places)
    with pytest.raises(ValueError, match=r"needed \(s, e\) integers"):
        module.cumsum_sub_one(made(2, 8, device=where))


def test_the_functions_of_the_ops(module: Any, where: str) -> None:
    """The loader has them too, in plain torch as well."""
    x, logits = made(5, 8, device=where), made(5, 6, device=where)
    weights, ids = module.topk_softmax(logits, 2, renormalize=True)
    rows, positions, ends = module.moe_permute(x, ids, 6)
    y = module.moe_unpermute(rows, positions, weights)
    torch.testing.assert_close(y, x)
    assert ends.tolist()[-1] == 10
    assert torch.equal(module.topk_sigmoid(logits, 2)[1], ops.topk_sigmoid(logits, 2)[1])
    assert module.moe_align_block_size(ids, 6, 4)[2].item() % 4 == 0
