"""Softmax at every CPU level: near float64 at any width, the same bits at any thread count."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.softmax import reference  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

OPS = torch.ops.precast
INFINITY = float("inf")


def made(*shape: int, dtype: Any = torch.float32) -> Any:
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))).to(dtype)


def assert_near(ours: Any, exact: Any) -> None:
    kind = torch.finfo(ours.dtype)
    share = 3e-6 if ours.dtype == torch.float32 else kind.eps
    error = (ours.double() - exact).abs()
    assert bool((error <= share * exact.abs() + kind.smallest_normal * kind.eps).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_near_float64_at_any_width(softmax_levels: Any, level: str, dtype: Any) -> None:
    softmax_levels.choose(level)
    for columns in (*range(1, 50), 1023, 1025, 4096, 100_003):
        x = made(3, columns, dtype=dtype)
        mask = made(3, columns + 1)[:, 1:] > 1
        assert_near(OPS.scaled_softmax(x, 0.7), reference.scaled_softmax(x.double(), 0.7))
        ours = OPS.scaled_aligned_causal_softmax(x, 0.7)
        assert_near(ours, reference.scaled_aligned_causal_softmax(x.double(), 0.7))
        ours = OPS.scaled_masked_softmax(x, mask, 0.7, -INFINITY, False)
        assert_near(ours, reference.scaled_masked_softmax(x.double(), mask, 0.7, -INFINITY, False))


@pytest.mark.parametrize("columns", [8192, 12_301, 64 * 4096 + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_long_rows_whose_maximum_comes_late(softmax_levels: Any, level: str, dtype: Any, columns: int) -> None:
    """What was kept for a smaller maximum is scaled, also from minus infinity and from far below."""
    softmax_levels.choose(level)
    x = made(4, columns, dtype=dtype)
    x[0, :5000], x[1, -1], x[2] = -INFINITY, 80, torch.linspace(-200, 200, columns)
    exact = torch.softmax(x.double(), -1)
    # The distance to the maximum is rounded to float, twice if the maximum grew.
    distance = (x.double().amax(-1, keepdim=True) - x.double()).clamp(max=400)
    share = 3e-6 + 1.2e-7 * distance if dtype == torch.float32 else torch.finfo(dtype).eps
    assert bool(((OPS.scaled_softmax(x, 1.0).double() - exact).abs() <= share * exact + 1.2e-38).all())
    x[3, 7], x[0] = float("nan"), -INFINITY
    assert OPS.scaled_softmax(x, 1.0).isnan().all(-1).tolist() == [True, False, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gradients_near_float64_at_any_width(softmax_backward_levels: Any, level: str, dtype: Any) -> None:
    """Relative to the terms that are added."""
    softmax_backward_levels.choose(level)
    share = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    for columns in (*range(1, 50), 1023, 1025, 4100):
        y, grad = torch.softmax(made(5, columns), -1).to(dtype), made(5, columns, dtype=dtype)
        exact = reference.scaled_softmax_backward(grad.double(), y.double(), 0.7, False)
        terms = 0.7 * y.double() * (grad.double().abs() + (grad.double() * y.double()).abs().sum(-1, keepdim=True))
        ours = OPS.scaled_softmax_backward(grad, y, 0.7, False).double()
        assert bool(((ours - exact).abs() <= share * terms + torch.finfo(dtype).smallest_normal).all()), columns


def test_the_exponential_over_its_whole_range(softmax_levels: Any, level: str) -> None:
    """Two columns, one of them the largest: the other is e^d to within the sum; zero below the normal range."""
    softmax_levels.choose(level)
    d = torch.linspace(-110, 0, 100_001)
    y = OPS.scaled_softmax(torch.stack([torch.zeros_like(d), d], 1), 1.0)[:, 1]
    exact = torch.sigmoid(d.double())
    assert ((y.double() - exact).abs() <= 5e-7 * exact + 1.2e-38).all()
    assert (OPS.scaled_softmax(torch.tensor([[0.0, -1e30, -INFINITY]]), 1.0) == torch.tensor([[1.0, 0.0, 0.0]])).all()


def test_the_same_bits_with_any_number_of_threads(softmax_levels: Any, threads: Any) -> None:
    x, grad = made(300, 769), made(300, 769)
    results = []
    for count in (1, 2, 3):
        threads(count)
        y = OPS.scaled_softmax(x, 0.7)
        results.append(torch.cat([y, OPS.scaled_softmax_backward(grad, y, 0.7, False)]))
    assert all(torch.equal(results[0], other) for other in results[1:])
