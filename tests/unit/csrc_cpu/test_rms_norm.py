"""RMSNorm at every CPU level: near float64 at any width, the same bits at any level, thread count and form."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.csrc_cpu.conftest import LEVELS
from tests.unit.csrc_cpu.tensors import made

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = [F32, F16, BF16]
NONE, LLAMA, GEMMA = 0, 1, 2
EPS = 1e-6
OPS = torch.ops.precast


def exact(x: Any, weight: Any, casting: int) -> Any:
    wide = x.double()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    if casting == LLAMA:
        normal = normal.to(x.dtype).double()
    return normal * (weight.double() + 1 if casting == GEMMA else weight.double())


def assert_near(ours: Any, right: Any, units: float) -> None:
    """float32: 2e-6 of the element; else so many units in the last place of the dtype."""
    kind = torch.finfo(ours.dtype)
    share = 2e-6 if ours.dtype == F32 else units * kind.eps
    error = (ours.double() - right).abs()
    allowed = share * right.abs() + units * kind.smallest_normal * kind.eps
    assert bool((error <= allowed).all()), f"off by {(error / right.abs()).max():.2e}"


@pytest.mark.parametrize("casting", [NONE, LLAMA, GEMMA])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward_is_near_float64_at_any_width(norm_levels: Any, level: str, dtype: Any, casting: int) -> None:
    """Every length of a row's last part, the edges of a block of sums, and a row that is wider than a cache."""
    norm_levels.choose(level)
    for hidden in (*range(1, 67), 1023, 1024, 1025, 4096, 100_003):
        (x,), (weight,) = made((3, hidden), dtype), made((hidden,), dtype, seed=1)
        # Two units under llama casting: the two roundings, and a normal value that itself lies between two numbers.
        assert_near(OPS.rms_norm(x, weight, EPS, casting), exact(x, weight, casting), 2 if casting == LLAMA else 1)


@pytest.mark.parametrize("casting", [NONE, GEMMA])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward_is_as_near_to_float64_as_torch(norm_levels: Any, level: str, dtype: Any, casting: int) -> None:
    norm_levels.choose(level)
    for shape in ((5, 7), (130, 33), (40, 1025), (3, 100_003)):
        x, grad = made(shape, dtype, 2)
        (weight,) = made(shape[-1:], dtype, seed=1)

        def by_torch(wanted: Any, x: Any = x, weight: Any = weight, grad: Any = grad) -> Any:
            leaves = [x.to(wanted).requires_grad_(), weight.to(wanted).requires_grad_()]
            scale = leaves[1] + 1 if casting == GEMMA else leaves[1]
            y = torch.nn.functional.rms_norm(leaves[0], leaves[1].shape, scale, EPS)
            return torch.autograd.grad(y, leaves, grad.to(wanted))

        ours = OPS.rms_norm_backward(grad, x, weight, EPS, casting)
        for one, right, torchs in zip(ours, by_torch(torch.float64), by_torch(dtype), strict=True):
            error, allowed = (one.double() - right).abs().max(), (torchs.double() - right).abs().max()
            ulp = torch.finfo(dtype).eps * right.abs().max()
            assert error <= max(1.5 * allowed, ulp), f"{shape}: {error:.2e} against torch's {allowed:.2e}"


def every_op(dtype: Any, shape: tuple[int, int] = (70, 1043)) -> dict[str, Any]:
    x, residual, grad, grad_sum = made(shape, dtype, 4)
    (weight,) = made(shape[-1:], dtype, seed=1)
    results = {}
    for casting in (NONE, LLAMA, GEMMA):
        end = (weight, EPS, casting)
        results[f"norm {casting}"] = [OPS.rms_norm(x, *end)]
        results[f"add {casting}"] = list(OPS.fused_add_rms_norm(x, residual, *end))
        results[f"backward {casting}"] = list(OPS.rms_norm_backward(grad, x, *end))
        results[f"add backward {casting}"] = list(OPS.fused_add_rms_norm_backward(grad, grad_sum, x, *end))
    return results


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_levels_agree(norm_levels: Any, dtype: Any) -> None:
    """Bitwise with fused multiply-add; without, as near as the sums themselves are."""
    results = norm_levels.each(lambda: every_op(dtype))
    plain = results.pop(LEVELS[0])
    for first, second in itertools.pairwise(results.values()):
        for name in first:
            assert all(map(torch.equal, first[name], second[name])), name
    for result, name in itertools.product(results.values(), plain):
        for one, other in zip(result[name], plain[name], strict=True):
            scale = other.abs().max()
            assert float((one - other).abs().max() / scale) <= (1e-6 if dtype == F32 else torch.finfo(dtype).eps), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_number_of_threads_changes_no_bit(
    norm_levels: Any, level: str, threads: Callable[[int], None], dtype: Any
) -> None:
    norm_levels.choose(level)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(every_op(dtype, (301, 259)))
    for other, name in itertools.product(results[1:], results[0]):
        assert all(map(torch.equal, other[name], results[0][name])), name


@pytest.mark.parametrize("casting", [NONE, LLAMA, GEMMA])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_fused_forms_are_the_norm_of_the_rounded_sum(
    norm_levels: Any, level: str, dtype: Any, casting: int
) -> None:
    norm_levels.choose(level)
    for hidden in (1, 17, 31, 48, 1043):
        x, residual = made((5, hidden), dtype, 2)
        (weight,) = made((hidden,), dtype, seed=1)
        y, total = OPS.fused_add_rms_norm(x, residual, weight, EPS, casting)
        assert torch.equal(total, x + residual)
        assert torch.equal(y, OPS.rms_norm(total, weight, EPS, casting))
        OPS.fused_add_rms_norm_(x, residual, weight, EPS, casting)
        assert torch.equal(x, y)
        assert torch.equal(residual, total)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_inside_a_larger_tensor(norm_levels: Any, level: str, dtype: Any) -> None:
    """Aligned to nothing, apart from each other: the same bits, and in place nothing is written between the rows."""
    norm_levels.choose(level)
    backing, residual = made((6, 50), dtype, 2)
    (weight,) = made((38,), dtype, seed=1)
    inner, inner_residual, weight = backing[:, 3:40], residual[:, 3:40], weight[1:]
    wanted = OPS.rms_norm(inner.contiguous(), weight.clone(), EPS, NONE)
    assert torch.equal(OPS.rms_norm(inner, weight, EPS, NONE), wanted)
    y, total = OPS.fused_add_rms_norm(inner, inner_residual, weight, EPS, NONE)
    kept = backing.clone(), residual.clone()
    OPS.fused_add_rms_norm_(inner, inner_residual, weight, EPS, NONE)
    for now, before, inside in ((backing, kept[0], y), (residual, kept[1], total)):
        assert torch.equal(now, torch.cat([before[:, :3], inside, before[:, 40:]], 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_infinity_stay_in_their_row(norm_levels: Any, level: str, dtype: Any) -> None:
    norm_levels.choose(level)
    (x,), (weight,) = made((4, 37), dtype), made((37,), dtype, seed=1)
    x[1, 36], x[2, 0] = float("nan"), float("inf")
    y = OPS.rms_norm(x, weight, EPS, NONE)
    assert bool(y[1].isnan().all())
    assert y[2, 0].isnan()
    assert bool((y[2, 1:] == 0).all())
    assert bool(y[[0, 3]].isfinite().all())
