"""The device code of LayerNorm, run thread by thread on the CPU and held against fp64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.norm import reference  # noqa: E402
from tests.unit.csrc.emulated import made, unaligned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("norm",)
EPS = 1e-5
UNIT = {torch.float32: 2**-20, torch.float16: 2**-10, torch.bfloat16: 2**-7}  # float32: several roundings, not one
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def wide(*tensors: Any) -> list[Any]:
    return [None if t is None else t.double() for t in tensors]


def assert_close(ours: Any, exact: Any, floor: float = 2e-6) -> None:
    """Within half a unit in the last place of the dtype, and a hair of fp32."""
    assert ours.shape == exact.shape
    allowed = 0.51 * UNIT[ours.dtype] * exact.abs() + floor
    worst = ((ours.double() - exact).abs() / allowed).max().item() if exact.numel() else 0.0
    assert worst <= 1.0, f"{worst} times the allowed error"


FORWARD = [
    (BF16, (5, 128), "layer_norm_bf16_v4<1,16x8>"),
    (BF16, (37, 96), "layer_norm_bf16_v4<5,16x8>"),
    (BF16, (17, 256), "layer_norm_bf16_v4<5,32x4>"),
    (BF16, (5, 264), "layer_norm_bf16_v4<2,32x4>"),
    (BF16, (3, 1024), "layer_norm_bf16_v4<2,32x2>"),
    (BF16, (3, 1032), "layer_norm_bf16_v4<3,160x1>"),
    (BF16, (2, 4096), "layer_norm_bf16_v4<2,256x1>"),
    (BF16, (2, 4104), "layer_norm_bf16_v4<2,288x1>"),
    (BF16, (2, 8192), "layer_norm_bf16_v4<2,512x1>"),
    (BF16, (1, 16384), "layer_norm_bf16_v4<1,512x1>"),
    (BF16, (1, 16392), "layer_norm_bf16_any<1,512x1>"),
    (F16, (2, 1032), "layer_norm_f16_v4<2,160x1>"),
    (F16, (3, 769), "layer_norm_f16_shifted<2,32x2>"),
    (BF16, (9, 505), "layer_norm_bf16_shifted<3,32x4>"),
    (BF16, (9, 507), "layer_norm_bf16_shifted<5,32x2>"),
    (F32, (9, 101), "layer_norm_f32_shifted<3,32x4>"),
    (BF16, (2, 16377), "layer_norm_bf16_shifted<2,512x1>"),
    (BF16, (2, 16379), "layer_norm_bf16_any<2,512x1>"),
    (F16, (9, 7), "layer_norm_f16_any<3,32x4>"),
    (F32, (2, 4096), "layer_norm_f32_v4<2,512x1>"),
    (F32, (2, 2, 3, 20), "layer_norm_f32_v4<1,8x16>"),
    (F32, (7, 1), "layer_norm_f32_any<2,32x4>"),
    (F32, (1, 100_003), "layer_norm_f32_any<1,512x1>"),
]


@pytest.mark.parametrize("parameters", ["weight and bias", "weight", "bias", "none"])
@pytest.mark.parametrize(("dtype", "shape", "launch"), FORWARD)
def test_forward(gpu: Any, dtype: Any, shape: tuple[int, ...], launch: str, parameters: str) -> None:
    x = made(*shape, dtype=dtype)
    weight = made(shape[-1], dtype=dtype, seed=1) if "weight" in parameters else None
    bias = made(shape[-1], dtype=dtype, seed=2) if "bias" in parameters else None
    gpu.launches()
    y = gpu.ops.layer_norm(x, weight, bias, EPS)
    assert gpu.launches() == launch
    assert_close(y, reference.layer_norm(*wide(x, weight, bias), EPS))


BACKWARD = [
    (BF16, (40, 128), "layer_norm_backward_bf16_v1<2,16x32>", "16"),
    (BF16, (50, 1024), "layer_norm_backward_bf16_v2<20,64x1>", "64"),
    (BF16, (70, 40), "layer_norm_backward_bf16_v1<2,8x64>", "5"),
    (BF16, (9, 264), "layer_norm_backward_bf16_v2<1,32x16>", "33"),
    (BF16, (9, 256), "layer_norm_backward_bf16_v1<1,32x16>", "32"),  # warps without a row
    (BF16, (30, 4096), "layer_norm_backward_bf16_v2_pair<4,256x1>", "128"),
    (BF16, (9, 4096), "layer_norm_backward_bf16_v2_pair<4,256x1>", "128"),
    (BF16, (3, 8192), "layer_norm_backward_bf16_v2<2,512x1>", "256"),
    (BF16, (3, 10240), "layer_norm_backward_bf16_v2<2,640x1>", "320"),
    (BF16, (5, 10248), "layer_norm_backward_bf16_v4<2,352x1>", "321"),
    (BF16, (5, 12296), "layer_norm_backward_bf16_v4<2,416x1>", "385"),
    (BF16, (3, 16384), "layer_norm_backward_bf16_v4<2,512x1>", "512"),
    (BF16, (5, 16392), "layer_norm_backward_bf16_any<4,512x1>", "513"),
    (F16, (50, 1000), "layer_norm_backward_f16_v2<20,64x1>", "125"),
    (F16, (9, 111), "layer_norm_backward_f16_any<3,32x4>", "14"),
    (F32, (9, 1028), "layer_norm_backward_f32_v2<8,160x1>", "65"),
    (F32, (3, 5124), "layer_norm_backward_f32_v4<2,352x1>", "161"),
    (F32, (5, 1), "layer_norm_backward_f32_any<2,32x4>", "1"),
    (F32, (9, 777), "layer_norm_backward_f32_any<8,224x1>", "98"),
    (BF16, (130, 1024), "layer_norm_backward_bf16_v2<20,64x1>", "64"),
    (F32, (60, 256), "layer_norm_backward_f32_v2<2,32x16>", "32"),
]


@pytest.mark.parametrize(
    ("wanted", "with_weight"),
    [((True, True), True), ((True, False), True), ((False, True), False), ((False, False), False)],
    ids=str,
)
@pytest.mark.parametrize(("dtype", "shape", "launch", "columns"), BACKWARD)
def test_backward(
    gpu: Any,
    dtype: Any,
    shape: tuple[int, ...],
    launch: str,
    columns: str,
    wanted: tuple[bool, bool],
    with_weight: bool,
) -> None:
    grad, x = made(*shape, dtype=dtype, seed=1), made(*shape, dtype=dtype)
    weight = made(shape[-1], dtype=dtype, seed=2) if with_weight else None
    gpu.launches()
    ours = gpu.ops.layer_norm_backward(grad, x, weight, EPS, *wanted)
    if any(wanted):
        block = "2x256" if shape[-1] < 1024 else "4x128" if shape[-1] < 4096 else "8x64"
        launch += f" layer_norm_backward_columns<{columns}{'x2' if all(wanted) else ''},{block}>"
    assert gpu.launches() == launch
    exact = reference.layer_norm_backward(*wide(grad, x, weight), EPS, *wanted)
    # A row of one element: r is large, and the terms of its gradient cancel.
    assert_close(ours[0], exact[0], floor=5e-6 if shape[-1] > 1 else 1e-4)
    for one, right in zip(ours[1:], exact[1:], strict=True):
        assert_close(one, right, floor=2e-5)
    again = gpu.ops.layer_norm_backward(grad, x, weight, EPS, *wanted)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


@pytest.mark.parametrize("hidden", [2, 7, 20, 101, 1028, 4096, 12_296, 16_392])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_variance_that_overflows_gives_nan(gpu: Any, dtype: Any, hidden: int) -> None:
    """Zeros, which are what the inverse of an infinite deviation makes of the row, would not be seen."""
    x, grad = made(3, hidden, dtype=dtype), made(3, hidden, dtype=dtype, seed=1)
    x[1] *= 1e25
    y = gpu.ops.layer_norm(x, None, None, EPS)
    of_x = gpu.ops.layer_norm_backward(grad, x, None, EPS, False, False)[0]
    for result in (y, of_x):
        assert bool(result[1].isnan().all()) and bool(result[::2].isfinite().all())


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_unaligned_tensors_go_through_the_general_kernel(gpu: Any, dtype: Any) -> None:
    x, weight, bias = made(3, 512, dtype=dtype), made(512, dtype=dtype, seed=1), made(512, dtype=dtype, seed=2)
    exact = reference.layer_norm(*wide(x, weight, bias), EPS)
    for args in ((unaligned(x), weight, bias), (x, unaligned(weight), bias), (x, weight, unaligned(bias))):
        gpu.launches()
        y = gpu.ops.layer_norm(*args, EPS)
        assert "_any<3,128x1>" in gpu.launches()
        assert_close(y, exact)


def test_strided_rows_are_read_where_they_lie(gpu: Any) -> None:
    rows = made(4, 3, 96, dtype=BF16)
    weight, bias = made(64, dtype=BF16), made(64, dtype=BF16, seed=1)
    for x in (rows[..., :64], rows[..., 1:65], rows.transpose(0, 1)[..., :64], rows[:1, :1, 16:80]):
        y = gpu.ops.layer_norm(x, weight, bias, EPS)
        assert y.is_contiguous()
        assert_close(y, reference.layer_norm(*wide(x, weight, bias), EPS))
        ours = gpu.ops.layer_norm_backward(x, x, weight, EPS, True, True)
        exact = reference.layer_norm_backward(*wide(x, x, weight), EPS, True, True)
        for one, right in zip(ours, exact, strict=True):
            assert_close(one, right, floor=2e-5)


def test_nothing_is_launched_for_nothing(gpu: Any) -> None:
    gpu.launches()
    for shape in ((0, 8), (3, 0), (0,), (2, 0, 8)):
        assert gpu.ops.layer_norm(torch.empty(shape), made(shape[-1]), None, EPS).shape == shape
    assert gpu.launches() == ""
    nothing = torch.empty(0, 8)
    for wanted in ((True, True), (False, True), (False, False)):
        grad_x, *others = gpu.ops.layer_norm_backward(nothing, nothing, made(8), EPS, *wanted)
        assert grad_x.shape == (0, 8)
        for one, asked in zip(others, wanted, strict=True):
            assert torch.equal(one, torch.zeros(8 if asked else 0))


def test_nan_and_infinity_stay_in_their_row(gpu: Any) -> None:
    x = made(4, 64, dtype=BF16)
    x[0, 5], x[1, 7] = float("nan"), float("inf")
    y = gpu.ops.layer_norm(x, None, None, EPS)
    assert y[:2].isnan().all()
    assert y[2:].isfinite().all()


@pytest.mark.parametrize("hidden", [96, 100, 4104, 16392])
def test_a_row_of_equal_numbers_is_its_bias(gpu: Any, hidden: int) -> None:
    """Whatever the sum was rounded to: the mean is corrected by the mean of the deviations."""
    bias = made(hidden)
    for value in (0.0, 1e4 / 3, -7e7 / 9):
        y = gpu.ops.layer_norm(torch.full((2, hidden), value), None, bias, EPS)
        assert torch.equal(y, bias.expand(2, hidden)), value


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_equal_numbers_whose_squares_are_infinite(gpu: Any, dtype: Any) -> None:
    x, grad, weight = torch.full((2, 128), 3e20, dtype=dtype), made(2, 128, dtype=dtype), made(128, dtype=dtype, seed=1)
    assert not gpu.ops.layer_norm(x, weight, None, EPS).any()
    ours = gpu.ops.layer_norm_backward(grad, x, weight, EPS, True, True)
    exact = reference.layer_norm_backward(*wide(grad, x, weight), EPS, True, True)
    assert_close(ours[0], exact[0], floor=2e-4)  # r is 316
    assert not ours[1].any()
    assert_close(ours[2], exact[2])


def test_a_large_mean_costs_no_more_than_its_own_rounding(gpu: Any) -> None:
    x = made(3, 4096) + 1e4
    exact = reference.layer_norm(x.double(), None, None, EPS)
    assert (gpu.ops.layer_norm(x, None, None, EPS) - exact).abs().max() < 1e4 * 2**-23


def test_signs_of_zero_stay_without_a_bias(gpu: Any) -> None:
    x, weight = made(2, 64), torch.full((64,), -0.0)
    y = gpu.ops.layer_norm(x, weight, None, EPS)
    assert torch.equal(torch.signbit(y), x > x.mean(-1, keepdim=True))


@pytest.mark.parametrize(("dtype", "hidden"), [(F32, 24), (F32, 25), (BF16, 24), (BF16, 26)], ids=str)
def test_a_row_does_not_depend_on_those_that_share_its_warp(gpu: Any, dtype: Any, hidden: int) -> None:
    x, grad = made(37, hidden, dtype=dtype), made(37, hidden, dtype=dtype, seed=1)
    x[::3] += 1000  # these rows need their sums once more, the others do not
    weight = made(hidden, dtype=dtype, seed=2)
    y = gpu.ops.layer_norm(x, weight, None, EPS)
    grad_x = gpu.ops.layer_norm_backward(grad, x, weight, EPS, True, True)[0]
    # Four rows on a row lies as it did beside the multiples of 16 bytes, and shares its warp with others.
    assert torch.equal(gpu.ops.layer_norm(x[4:].clone(), weight, None, EPS), y[4:])
    apart = gpu.ops.layer_norm_backward(grad[4:].clone(), x[4:].clone(), weight, EPS, True, True)[0]
    assert torch.equal(apart, grad_x[4:])


# (shape, kernel of the gradients) for float32 parameters
WIDE_PARAMETERS = [
    ((5, 128), "v2"),
    ((40, 1024), "v2"),
    ((9, 4096), "v2_pair"),
    ((2, 10248), "any"),  # more than two vectors for each of 640 threads
    ((9, 57), "any"),
]


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("shape", "backward"), WIDE_PARAMETERS)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_float32_parameters(gpu: Any, dtype: Any, shape: tuple[int, ...], backward: str, with_bias: bool) -> None:
    x, grad, weight = made(*shape, dtype=dtype), made(*shape, dtype=dtype, seed=1), made(shape[-1], seed=2)
    bias = made(shape[-1], seed=3) if with_bias else None
    name = {F16: "f16", BF16: "bf16"}[dtype]
    gpu.launches()
    y = gpu.ops.layer_norm(x, weight, bias, EPS)
    assert gpu.launches().startswith(f"layer_norm_{name}_any<")
    assert y.dtype == dtype
    assert_close(y, reference.layer_norm(*wide(x, weight, bias), EPS))
    found = gpu.ops.layer_norm_backward(grad, x, weight, EPS, True, with_bias)
    assert gpu.launches().startswith(f"layer_norm_backward_{name}_{backward}<")
    right = reference.layer_norm_backward(*wide(grad, x, weight), EPS, True, with_bias)
    assert [t.dtype for t in found] == [dtype, torch.float32, torch.float32]
    for one, other in zip(found, right, strict=True):
        assert_close(one, other, floor=2e-5)
