"""The reference is what everything else is compared with, so it is itself compared with torch, in float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.cpu_adam import reference as cpu_adam_reference  # noqa: E402
from precast.ops.norm import GEMMA  # noqa: E402
from precast.ops.norm import reference as norm_reference  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    # gradcheck of forward mode: torch 2.13 warns about its own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

EPS = 1e-6
CASTINGS = [0, 1, 2]


def doubles(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes)


@pytest.mark.parametrize("casting", CASTINGS)
def test_rms_norm_is_torchs(casting: int) -> None:
    x, weight = doubles((3, 4, 6), (6,))
    scale = 1 + weight if casting == GEMMA else weight
    theirs = torch.nn.functional.rms_norm(x, (6,), scale, EPS)
    torch.testing.assert_close(norm_reference.rms_norm(x, weight, EPS, casting), theirs, rtol=1e-14, atol=1e-14)


def test_castings_round_where_they_say() -> None:
    x, weight = (t.detach().bfloat16() for t in doubles((100,), (100,)))
    normal = x.float() * torch.rsqrt(x.float().square().mean() + EPS)
    once, llama, gemma = (norm_reference.rms_norm(x, weight, EPS, casting) for casting in CASTINGS)
    assert torch.equal(once, (normal * weight.float()).bfloat16())
    assert torch.equal(llama, normal.bfloat16() * weight)
    assert torch.equal(gemma, (normal * (1 + weight.float())).bfloat16())
    assert not torch.equal(once, llama)


@pytest.mark.parametrize("casting", CASTINGS)
def test_backward_is_autograds(casting: int) -> None:
    x, residual, weight, grad_y, grad_sum = doubles((3, 4, 6), (3, 4, 6), (6,), (3, 4, 6), (3, 4, 6))
    y = norm_reference.rms_norm(x, weight, EPS, casting)
    torch.testing.assert_close(
        norm_reference.rms_norm_backward(grad_y, x, weight, EPS, casting),
        torch.autograd.grad(y, (x, weight), grad_y),
    )
    y, total = norm_reference.fused_add_rms_norm(x, residual, weight, EPS, casting)
    grad_x, grad_residual, grad_weight = torch.autograd.grad((y, total), (x, residual, weight), (grad_y, grad_sum))
    assert torch.equal(grad_x, grad_residual)
    ours = norm_reference.fused_add_rms_norm_backward(grad_y, grad_sum, total, weight, EPS, casting)
    torch.testing.assert_close(ours, (grad_x, grad_weight))


@pytest.mark.parametrize("casting", CASTINGS)
@pytest.mark.parametrize("shape", [(6,), (2, 6)], ids=str)
def test_derivatives_against_differences(shape: tuple[int, ...], casting: int) -> None:
    x, residual, weight, grad = doubles(shape, shape, (6,), shape)
    for function, inputs in (
        (lambda x, w: norm_reference.rms_norm(x, w, EPS, casting), (x, weight)),
        (lambda x, r, w: norm_reference.fused_add_rms_norm(x, r, w, EPS, casting), (x, residual, weight)),
        (lambda g, x, w: norm_reference.rms_norm_backward(g, x, w, EPS, casting), (grad, x, weight)),
        (
            lambda g, s, t, w: norm_reference.fused_add_rms_norm_backward(g, s, t, w, EPS, casting),
            (grad, residual, x, weight),
        ),
    ):
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("parameters", ["weight and bias", "weight", "bias", "none"])
@pytest.mark.parametrize("shape", [(6,), (3, 4, 6)], ids=str)
def test_layer_norm_is_torchs(shape: tuple[int, ...], parameters: str) -> None:
    x, grad, weight, bias = doubles(shape, shape, (6,), (6,))
    given = (weight if "weight" in parameters else None, bias if "bias" in parameters else None)
    theirs = torch.nn.functional.layer_norm(x, (6,), *given, EPS)
    torch.testing.assert_close(norm_reference.layer_norm(x, *given, EPS), theirs, rtol=1e-13, atol=1e-13)
    leaves = [t for t in (x, *given) if t is not None]
    exact = torch.autograd.grad(theirs, leaves, grad)
    wanted = tuple(t is not None for t in given)
    ours = norm_reference.layer_norm_backward(grad, x, given[0], EPS, *wanted)
    assert [t.numel() > 0 for t in ours[1:]] == list(wanted)
    torch.testing.assert_close(tuple(t for t in ours if t.numel()), exact, rtol=1e-12, atol=1e-12)
    for function, inputs in (
        (lambda *a: norm_reference.layer_norm(*a, EPS), (x, *given)),
        (lambda g, x, w: norm_reference.layer_norm_backward(g, x, w, EPS, True, True), (grad, x, given[0])),
    ):
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("maximize", [True, False])
def test_adam_is_torchs(decoupled: bool, maximize: bool) -> None:
    (start,) = doubles((50,))
    theirs = start.detach().clone().requires_grad_()
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([theirs], lr=1e-2, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.1, maximize=maximize)
    ours, m, v = start.detach().clone(), torch.zeros(50).double(), torch.zeros(50).double()
    copy = torch.zeros(50, dtype=torch.bfloat16)
    for step in range(1, 20):
        grad = torch.randn(50, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        theirs.grad = grad
        optimizer.step()
        corrections = (1 - 0.8**step, 1 - 0.95**step)
        cpu_adam_reference.adam_(
            [ours], [grad * 4], [m], [v], [copy], 1e-2, 0.8, 0.95, 1e-7, 0.1, *corrections, 0.25, decoupled, maximize
        )
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(copy, ours.bfloat16())
