"""The kernels for rows that a cluster of blocks shares, with clusters of one block in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.norm import reference  # noqa: E402
from tests.unit.csrc.emulated import Emulated, made, unaligned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EPS = 1e-5
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Rows that fill the threads, leave some without a vector, and more rows than the two clusters that are resident.
SHAPES = [(F32, 1, 512), (F32, 5, 388), (BF16, 3, 1024), (BF16, 5, 264), (F16, 2, 520)]


def in_clusters(gpu: Emulated) -> Iterator[Emulated]:
    gpu.c.emulated_clusters(64)
    yield gpu
    gpu.c.emulated_clusters(0)


@pytest.fixture(scope="module")
def norms(emulator: Callable[..., Emulated]) -> Iterator[Emulated]:
    yield from in_clusters(emulator("norm"))


@pytest.fixture(scope="module")
def softmax(emulator: Callable[..., Emulated]) -> Iterator[Emulated]:
    yield from in_clusters(emulator("softmax"))


def assert_close(ours: Any, exact: Any) -> None:
    tolerance = 2e-6 if ours.dtype == F32 else torch.finfo(ours.dtype).eps
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "rows", "columns"), SHAPES, ids=str)
@pytest.mark.parametrize("scale", [0.7, -1.3])
def test_softmax(softmax: Emulated, dtype: Any, rows: int, columns: int, scale: float) -> None:
    x, grad = made(rows, columns, dtype=dtype, scale=3.0), made(rows, columns, dtype=dtype, seed=1)
    softmax.launches()
    y = softmax.ops.scaled_softmax(x, scale)
    assert "_wide<" in softmax.launches()
    assert_close(y, torch.softmax(x.double() * scale, -1))
    found = softmax.ops.scaled_softmax_backward(grad, y, scale, False)
    assert "_wide<" in softmax.launches()
    wide, g = y.double(), grad.double()
    assert_close(found, scale * wide * (g - (g * wide).sum(-1, keepdim=True)))


def test_special_values_of_softmax(softmax: Emulated) -> None:
    x = made(6, 512)
    x[0, 7], x[1, 511], x[2, :300] = float("nan"), float("inf"), -float("inf")
    x[3], x[4], x[5] = -float("inf"), 3e38, torch.finfo(F32).min
    torch.testing.assert_close(softmax.ops.scaled_softmax(x, 1.0), torch.softmax(x, -1), equal_nan=True)


@pytest.mark.parametrize("casting", [0, 1, 2])
@pytest.mark.parametrize(("dtype", "rows", "columns"), SHAPES, ids=str)
def test_rms_norm(norms: Emulated, dtype: Any, rows: int, columns: int, casting: int) -> None:
    x, residual = made(rows, columns, dtype=dtype), made(rows, columns, dtype=dtype, seed=3)
    for weight in (made(columns, dtype=dtype, seed=2), made(columns, seed=2)):
        norms.launches()
        y = norms.ops.rms_norm(x, weight, EPS, casting)
        both, total = norms.ops.fused_add_rms_norm(x, residual, weight, EPS, casting)
        assert norms.launches().count("_wide<") == 2
        assert torch.equal(total, x + residual)
        for found, given in ((y, x.double()), (both, total.double())):
            normal = given * (given.square().mean(-1, keepdim=True) + EPS).rsqrt()
            if casting == 1:
                normal = normal.to(dtype).double()
            error = (found.double() - normal * (weight.double() + (casting == 2))).abs()
            unit = 4e-6 if dtype == F32 else 2 * torch.finfo(dtype).eps
            assert bool((error <= unit * (1 + normal.abs()) * (1 + weight.double().abs())).all())


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize(("dtype", "rows", "columns"), SHAPES, ids=str)
def test_layer_norm(norms: Emulated, dtype: Any, rows: int, columns: int, offset: float) -> None:
    x = (made(rows, columns) + offset).to(dtype)
    for kind in (dtype, F32):
        weight, bias = made(columns, dtype=kind, seed=2), made(columns, dtype=kind, seed=3)
        for w, b in ((weight, bias), (weight, None), (None, None)):
            norms.launches()
            y = norms.ops.layer_norm(x, w, b, EPS)
            assert "_wide<" in norms.launches()
            wide = [None if t is None else t.double() for t in (w, b)]
            exact = torch.nn.functional.layer_norm(x.double(), (columns,), *wide, EPS)
            unit = 2e-5 if dtype == F32 else 2 * torch.finfo(dtype).eps
            torch.testing.assert_close(y.double(), exact, rtol=unit, atol=unit)


def test_a_row_of_equal_numbers_has_no_variance(norms: Emulated) -> None:
    assert bool((norms.ops.layer_norm(torch.full((3, 512), 12345.678), None, None, EPS) == 0).all())


def test_a_variance_that_overflows_gives_nan(norms: Emulated) -> None:
    x = made(3, 512)
    x[1] *= 1e25
    y = norms.ops.layer_norm(x, None, None, EPS)
    assert "_wide<" in norms.launches()
    assert bool(y[1].isnan().all()) and bool(y[::2].isfinite().all())


# More rows than workers, which are blocks or warps of a block.
ANYWHERE = [(BF16, 50, 777), (F16, 90, 111), (F32, 50, 777), (BF16, 70, 97), (F32, 40, 1026), (BF16, 45, 1025)]


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize(("dtype", "rows", "columns"), ANYWHERE, ids=str)
def test_gradients_of_layer_norm_for_rows_that_begin_anywhere(
    norms: Emulated, dtype: Any, rows: int, columns: int, offset: float
) -> None:
    x, grad = (made(rows, columns) + offset).to(dtype), made(rows, columns, dtype=dtype, seed=1)
    for weight in (made(columns, dtype=dtype, seed=2), made(columns, seed=2), None):
        given = [None if t is None else t.double() for t in (grad, x, weight)]
        for wanted in ((True, True), (False, True), (False, False)):
            norms.launches()
            ours = norms.ops.layer_norm_backward(grad, x, weight, EPS, *wanted)
            assert "_shifted<" in norms.launches()
            exact = reference.layer_norm_backward(*given, EPS, *wanted)
            for one, right in zip(ours, exact, strict=True):
                unit = 1e-4 if one.dtype == F32 else torch.finfo(one.dtype).eps
                torch.testing.assert_close(one.double(), right, rtol=unit, atol=unit)


def test_few_rows_and_rows_of_an_unaligned_tensor_take_the_general_kernel(norms: Emulated) -> None:
    grad, weight = made(50, 777, dtype=BF16, seed=1), made(777, dtype=BF16, seed=2)
    for x, g in ((made(9, 777, dtype=BF16), grad[:9]), (unaligned(made(50, 777, dtype=BF16)), grad)):
        norms.launches()
        norms.ops.layer_norm_backward(g, x, weight, EPS, True, True)
        assert "_backward_bf16_any<" in norms.launches()
