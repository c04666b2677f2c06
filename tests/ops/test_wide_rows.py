"""Rows that a cluster of blocks shares, and small launches that start early: numbers, repeatability, graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast.ops  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.gpu]

EPS = 1e-5
ops: Any = precast.ops
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Around the widths at which another kernel, a larger cluster or more threads take over, and those of vocabularies.
WIDTHS = [8192, 8200, 16384, 16392, 20480, 20488, 32768, 32776, 40968, 65536, 81968, 128256, 131072, 131080, 262144]
ROWS = [1, 140]


def made(*shape: int, dtype: Any = torch.float32, seed: int = 0, scale: float = 1.0, offset: float = 0.0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return (scale * torch.randn(*shape, generator=generator, device="cuda") + offset).to(dtype)


def assert_near(ours: Any, exact: Any, terms: Any = None) -> None:
    """Each element within a unit in the last place, and 4e-6 of what is added up for it."""
    kind = torch.finfo(ours.dtype)
    error = (ours.double() - exact).abs()
    allowed = 4e-6 * (exact.abs() if terms is None else exact.abs() + terms) + kind.smallest_normal * kind.eps
    if ours.dtype != torch.float32:
        allowed += kind.eps * exact.abs().clamp(min=kind.tiny)
    wrong = ~(error <= allowed)
    assert not bool(wrong.any()), f"{int(wrong.sum())} of {wrong.numel()}, off by up to {float(error[wrong].max())}"


def exact_rms(x: Any, weight: Any) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def gradients(call: Callable[..., Any], tensors: list[Any], grad: Any) -> tuple[Any, list[Any]]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    found = call(*leaves)
    return found.detach(), list(torch.autograd.grad(found, leaves, grad))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [*WIDTHS, 16387, 50257, 131077])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax(dtype: Any, columns: int, rows: int) -> None:
    x, grad = made(rows, columns, dtype=dtype, scale=3.0), made(rows, columns, dtype=dtype, seed=1)
    y, (grad_x,) = gradients(lambda t: ops.scaled_softmax(t, 0.7), [x], grad)
    assert_near(y, torch.softmax(x.double() * 0.7, -1))
    terms = y.double() * ((grad.double() * y.double()).abs().sum(-1, keepdim=True) + grad.double().abs())
    exact = 0.7 * y.double() * (grad.double() - (grad.double() * y.double()).sum(-1, keepdim=True))
    assert_near(grad_x, exact, terms)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm(dtype: Any, columns: int, rows: int) -> None:
    x, grad = made(rows, columns, dtype=dtype), made(rows, columns, dtype=dtype, seed=1)
    weight = made(columns, dtype=dtype, seed=2)
    y, (grad_x, grad_weight) = gradients(lambda t, w: ops.rms_norm(t, w, EPS), [x, weight], grad)
    assert_near(y, exact_rms(x.double(), weight.double()))
    _, exact = gradients(exact_rms, [x.double(), weight.double()], grad.double())
    r = (x.double().square().mean(-1, keepdim=True) + EPS).rsqrt()
    terms = r * ((grad * weight).double().abs() + x.double().abs())
    assert_near(grad_x, exact[0], terms)
    assert_near(grad_weight, exact[1], (grad.double() * x.double() * r).abs().sum(0))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_add_rms_norm(dtype: Any, columns: int, rows: int) -> None:
    x, residual = made(rows, columns, dtype=dtype), made(rows, columns, dtype=dtype, seed=3)
    weight = made(columns, dtype=dtype, seed=2)
    y, total = ops.fused_add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    assert_near(y, exact_rms(total.double(), weight.double()))
    ops.fused_add_rms_norm_(x, residual, weight, EPS)
    assert torch.equal(x, y)
    assert torch.equal(residual, total)


@pytest.mark.parametrize("offset", [0.0, 50.0])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm(dtype: Any, columns: int, rows: int, offset: float) -> None:
    x, grad = made(rows, columns, dtype=dtype, offset=offset), made(rows, columns, dtype=dtype, seed=1)
    weight, bias = made(columns, dtype=dtype, seed=2), made(columns, dtype=dtype, seed=3)
    y, found = gradients(lambda *t: ops.layer_norm(*t, EPS), [x, weight, bias], grad)
    wide = [t.double() for t in (x, weight, bias)]
    exact_y, exact = gradients(
        lambda t, w, b: torch.nn.functional.layer_norm(t, (columns,), w, b, EPS), wide, grad.double()
    )
    centred = wide[0] - wide[0].mean(-1, keepdim=True)
    r = (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
    far = 1 + offset  # the mean is rounded to float32
    assert_near(y, exact_y, far * (wide[1].abs() + wide[2].abs()) + (centred * r * wide[1]).abs())
    h = (grad.double() * wide[1]).abs()
    assert_near(found[0], exact[0], far * r * (h + h.mean(-1, keepdim=True) * (1 + (centred * r).abs())))
    assert_near(
        found[1], exact[1], (grad.double() * (centred * r)).abs().sum(0) + 0.1 * far * grad.double().abs().sum(0)
    )
    assert_near(found[2], exact[2], grad.double().abs().sum(0))


@pytest.mark.parametrize("columns", [8200, 20488, 65536])
def test_float32_parameters_of_narrower_rows(columns: int) -> None:
    x, weight, bias = made(5, columns, dtype=torch.bfloat16), made(columns, seed=2), made(columns, seed=3)
    assert_near(ops.rms_norm(x, weight, EPS), exact_rms(x.double(), weight.double()))
    exact = torch.nn.functional.layer_norm(x.double(), (columns,), weight.double(), bias.double(), EPS)
    terms = weight.double().abs() * (1 + x.double().abs()) + bias.double().abs()
    assert_near(ops.layer_norm(x, weight, bias, EPS), exact, terms)
    assert_near(ops.layer_norm(x, weight, None, EPS), exact - bias.double(), terms)


@pytest.mark.parametrize("columns", [65536, 262144])
def test_special_values(columns: int) -> None:
    x = made(6, columns)
    x[0, 7] = float("nan")
    x[1, columns - 1] = float("inf")
    x[2, : columns // 2] = -float("inf")
    x[3] = -float("inf")
    x[4], x[5] = 3e38, torch.finfo(torch.float32).min
    y, exact = ops.scaled_softmax(x, 1.0), torch.softmax(x, -1)
    torch.testing.assert_close(y, exact, equal_nan=True)
    same = torch.full((3, columns), 12345.678, device="cuda")
    assert bool((ops.layer_norm(same, None, None, EPS, normalized_shape=(columns,)) == 0).all())


@pytest.mark.parametrize("columns", [2880, 65536, 131072])
def test_the_same_bits_every_time(columns: int) -> None:
    x, grad, weight = made(300, columns), made(300, columns, seed=1), made(columns, seed=2)
    calls: list[Callable[[], Any]] = [
        lambda: [ops.scaled_softmax(x, 1.0)],
        lambda: gradients(lambda t, w: ops.rms_norm(t, w, EPS), [x, weight], grad)[1],
        lambda: gradients(lambda t, w: ops.layer_norm(t, w, None, EPS), [x, weight], grad)[1],
    ]
    for call in calls:
        first = call()
        for _ in range(5):
            assert all(torch.equal(a, b) for a, b in zip(first, call(), strict=True))


def chain(x: Any, weight: Any, count: int) -> Any:
    """Small launches in a row, each of which needs the results of the one before, in memory that is used again."""
    for _ in range(count):
        y = ops.rms_norm(x, weight, EPS)
        y, x = ops.fused_add_rms_norm(y, x, weight, EPS)
        y = ops.silu_and_mul(torch.ops.aten.cat.default([y, x], -1))
        y = ops.layer_norm(y + x, weight, None, EPS)
        x = ops.scaled_softmax(y, 1.0) + ops.silu_and_mul(ops.scaled_softmax(y, 0.5).repeat(1, 2))
    return x


@pytest.mark.parametrize(("rows", "columns"), [(1, 2880), (16, 7168), (2, 81968), (300, 64), (4, 771)], ids=str)
def test_small_launches_in_a_row(rows: int, columns: int) -> None:
    x, weight = made(rows, columns), made(columns, seed=2)
    expected = x
    for _ in range(20):  # one at a time
        expected = chain(expected, weight, 1)
        torch.cuda.synchronize()
    assert torch.equal(chain(x, weight, 20), expected)
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = chain(x, weight, 20)
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, expected)


def test_an_early_launch_waits_for_a_large_one() -> None:
    """The launch before is large and of another family, and the memory of its result is used again at once."""
    big, weight = made(20000, 4096), made(4096, seed=2)
    expected = ops.rms_norm(ops.rms_norm(big, weight, EPS)[-3:].clone(), weight, EPS)
    for _ in range(50):
        large = ops.rms_norm(big, weight, EPS)
        small = ops.rms_norm(large[-3:], weight, EPS)
        del large
        reused = ops.scaled_softmax(big[:2], 1.0)
        assert torch.equal(small, expected)
        del reused
