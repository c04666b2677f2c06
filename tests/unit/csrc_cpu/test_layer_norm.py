"""LayerNorm at every CPU level: near float64 at any width, the same bits at any level and thread count."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.unit.csrc_cpu.conftest import LEVELS
from tests.unit.csrc_cpu.tensors import made

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

F32 = torch.float32
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EPS = 1e-5
OPS = torch.ops.precast


def exact(x: Any, weight: Any, bias: Any) -> Any:
    given = [None if t is None else t.double() for t in (weight, bias)]
    return torch.nn.functional.layer_norm(x.double(), x.shape[-1:], *given, EPS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward_is_near_float64_at_any_width(layer_norm_levels: Any, level: str, dtype: Any) -> None:
    """Every length of a row's last part, the edges of a block of sums, and a row that is wider than a cache."""
    layer_norm_levels.choose(level)
    for hidden in (*range(1, 67), 1023, 1024, 1025, 4096, 100_003):
        (x,), (weight, bias) = made((3, hidden), dtype), made((hidden,), dtype, 2, seed=1)
        for given in ((weight, bias), (weight, None), (None, bias), (None, None)):
            y, right = OPS.layer_norm(x, *given, EPS), exact(x, *given)
            unit = 4e-7 if dtype == F32 else torch.finfo(dtype).eps / 2
            # The terms of the sum may be larger than it: rounded are (x - mean) * r * weight and the bias.
            size = right.abs() + exact(x, given[0], None).abs() * (4e-7 / unit) + 1
            assert bool(((y.double() - right).abs() <= 1.01 * unit * right.abs() + 2e-6 * size).all()), (hidden, given)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward_is_as_near_to_float64_as_torch(layer_norm_backward_levels: Any, level: str, dtype: Any) -> None:
    layer_norm_backward_levels.choose(level)
    for shape in ((5, 7), (130, 33), (40, 1025), (3, 100_003)):
        x, grad = made(shape, dtype, 2)
        (weight,) = made(shape[-1:], dtype, seed=1)

        def by_torch(wanted: Any, x: Any = x, weight: Any = weight, grad: Any = grad) -> Any:
            leaves = [x.to(wanted).requires_grad_(), weight.to(wanted).requires_grad_()]
            leaves.append(torch.zeros_like(leaves[1]).requires_grad_())
            y = torch.nn.functional.layer_norm(leaves[0], leaves[1].shape, leaves[1], leaves[2], EPS)
            return torch.autograd.grad(y, leaves, grad.to(wanted))

        ours = OPS.layer_norm_backward(grad, x, weight, EPS, True, True)
        for one, right, torchs in zip(ours, by_torch(torch.float64), by_torch(dtype), strict=True):
            error, allowed = (one.double() - right).abs().max(), (torchs.double() - right).abs().max()
            ulp = torch.finfo(dtype).eps * right.abs().max()
            assert error <= max(1.5 * allowed, ulp), f"{shape}: {error:.2e} against torch's {allowed:.2e}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_variance_that_overflows_gives_nan(
    layer_norm_levels: Any, layer_norm_backward_levels: Any, level: str, dtype: Any
) -> None:
    """Zeros, which are what the inverse of an infinite deviation makes of the row, would not be seen."""
    for chosen in (layer_norm_levels, layer_norm_backward_levels):
        chosen.choose(level)
    for hidden in (2, 15, 16, 33, 1025, 4096):
        x, grad = made((3, hidden), dtype, 2)
        x[1] = torch.randn(hidden).to(dtype) * 1e25
        y = OPS.layer_norm(x, None, None, EPS)
        (of_x, *_) = OPS.layer_norm_backward(grad, x, None, EPS, False, False)
        for result in (y, of_x):
            assert bool(result[1].isnan().all()) and bool(result[::2].isfinite().all()), hidden


def forward(dtype: Any) -> list[Any]:
    (x,), (weight, bias) = made((70, 1043), dtype), made((1043,), dtype, 2, seed=1)
    return [OPS.layer_norm(x, w, b, EPS) for w in (weight, None) for b in (bias, None)]


def backward(dtype: Any) -> list[Any]:
    x, grad = made((301, 259), dtype, 2)
    (weight,) = made((259,), dtype, seed=1)
    return [t for w in (weight, None) for t in OPS.layer_norm_backward(grad, x, w, EPS, True, True)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("compute", [forward, backward], ids=lambda f: f.__name__)
def test_levels_agree(layer_norm_levels: Any, layer_norm_backward_levels: Any, compute: Any, dtype: Any) -> None:
    """Bitwise with fused multiply-add; without, as near as the sums themselves are."""
    levels = layer_norm_levels if compute is forward else layer_norm_backward_levels
    results = levels.each(lambda: compute(dtype))
    plain = results.pop(LEVELS[0])
    for first, second in itertools.pairwise(results.values()):
        assert all(map(torch.equal, first, second))
    for result in results.values():
        for one, other in zip(result, plain, strict=True):
            scale = other.abs().max()
            assert float((one - other).abs().max() / scale) <= (1e-6 if dtype == F32 else torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_of_equal_numbers_is_its_bias(layer_norm_levels: Any, level: str, dtype: Any) -> None:
    layer_norm_levels.choose(level)
    for hidden in (3, 100, 1043):
        (bias,) = made((hidden,), dtype)
        y = OPS.layer_norm(torch.full((2, hidden), 1e4 / 3).to(dtype), None, bias, EPS)
        assert torch.equal(y, bias.expand(2, hidden))


def test_gradients_of_rows_far_from_zero_are_those_around_the_exact_mean(
    layer_norm_backward_levels: Any, level: str
) -> None:
    """The mean of such a row is rounded by more than the deviations are, and a gradient of one sign adds that up."""
    layer_norm_backward_levels.choose(level)
    x, grad = made((7, 100), F32, 2)
    x, grad = x + 4096 / 3, 1 + 1e-3 * grad
    grad_x, _, _ = OPS.layer_norm_backward(grad, x, None, EPS, False, False)
    leaf = x.double().requires_grad_()
    (right,) = torch.autograd.grad(torch.nn.functional.layer_norm(leaf, (100,), None, None, EPS), leaf, grad.double())
    assert float((grad_x.double() - right).abs().max()) <= 3e-6, "the terms are about 1 in size"
