"""The device code, run thread by thread on the CPU and held against fp64: every index, barrier and launch choice."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.norm import reference  # noqa: E402
from tests.unit.csrc.emulated import made, unaligned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("norm",)
EPS = 1e-6
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
UNIT = {torch.float32: 2**-23, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def assert_close(ours: Any, exact: Any, units: float = 1.0, floor: float = 1e-6) -> None:
    """Within ``units`` in the last place of the dtype, and a hair of fp32."""
    assert ours.shape == exact.shape
    if ours.dtype == torch.float32:
        units *= 8  # several roundings, not one
    allowed = units * UNIT[ours.dtype] * exact.abs() + floor
    worst = ((ours.double() - exact).abs() / allowed).max().item() if exact.numel() else 0.0
    assert worst <= 1.0, f"{worst} times the allowed error"


def wide(*tensors: Any) -> list[Any]:
    return [t.double() for t in tensors]


FORWARD = [
    (torch.bfloat16, (5, 128), "rms_norm_bf16_v4<1,16x8>"),
    (torch.bfloat16, (37, 64), "rms_norm_bf16_v4<3,8x16>"),  # two vectors in a lane: up to eight in a row
    (torch.bfloat16, (37, 72), "rms_norm_bf16_v4<5,16x8>"),
    (torch.bfloat16, (70, 8), "rms_norm_bf16_v4<1,1x128>"),
    (torch.bfloat16, (17, 256), "rms_norm_bf16_v4<5,32x4>"),  # the widest of which a warp has several
    (torch.bfloat16, (5, 264), "rms_norm_bf16_v4<2,32x4>"),
    (torch.bfloat16, (3, 1024), "rms_norm_bf16_v4<2,32x2>"),
    (torch.bfloat16, (2, 4096), "rms_norm_bf16_v4<2,256x1>"),  # few rows: two vectors per thread
    (torch.bfloat16, (3, 8192), "rms_norm_bf16_v4<3,512x1>"),
    (torch.bfloat16, (1, 20480), "rms_norm_bf16_v4<1,640x1>"),
    (torch.bfloat16, (1, 20488), "rms_norm_bf16_any<1,512x1>"),
    (torch.float16, (3, 1032), "rms_norm_f16_v4<3,160x1>"),
    (torch.float16, (3, 769), "rms_norm_f16_shifted<2,32x2>"),
    (torch.float16, (9, 9), "rms_norm_f16_shifted<1,2x64>"),
    (torch.bfloat16, (35, 57), "rms_norm_bf16_shifted<3,8x16>"),
    (torch.bfloat16, (35, 59), "rms_norm_bf16_shifted<5,16x8>"),
    (torch.bfloat16, (9, 505), "rms_norm_bf16_shifted<3,32x4>"),
    (torch.bfloat16, (9, 507), "rms_norm_bf16_shifted<5,32x2>"),
    (torch.bfloat16, (2, 5137), "rms_norm_bf16_shifted<2,352x1>"),
    (torch.bfloat16, (2, 16377), "rms_norm_bf16_shifted<2,512x1>"),
    (torch.bfloat16, (2, 16379), "rms_norm_bf16_any<2,512x1>"),
    (torch.float32, (9, 101), "rms_norm_f32_shifted<3,32x4>"),
    (torch.float16, (9, 7), "rms_norm_f16_any<3,32x4>"),
    (torch.float32, (3, 4096), "rms_norm_f32_v4<3,512x1>"),
    (torch.float32, (7, 1), "rms_norm_f32_any<2,32x4>"),
    (torch.float32, (2, 2, 3, 20), "rms_norm_f32_v4<1,8x16>"),
    (torch.float32, (1, 100_003), "rms_norm_f32_any<1,512x1>"),
]


@pytest.mark.parametrize("casting", [0, 1, 2])
@pytest.mark.parametrize(("dtype", "shape", "launch"), FORWARD)
def test_forward(gpu: Any, dtype: Any, shape: tuple[int, ...], launch: str, casting: int) -> None:
    x, weight = made(*shape, dtype=dtype), made(shape[-1], dtype=dtype, seed=1)
    gpu.launches()
    y = gpu.ops.rms_norm(x, weight, EPS, casting)
    assert gpu.launches() == launch
    exact = reference.rms_norm(*wide(x, weight), EPS, casting)
    assert_close(y, exact, 2.0 if casting == 1 else 0.51, floor=2e-6)


ADD = [
    (torch.bfloat16, (5, 128), "add_rms_norm_bf16_v1<1,16x8>"),
    (torch.bfloat16, (5, 256), "add_rms_norm_bf16_v1<2,32x4>"),
    (torch.bfloat16, (5, 264), "add_rms_norm_bf16_v1<5,64x1>"),
    (torch.bfloat16, (3, 1024), "add_rms_norm_bf16_v1<3,128x1>"),
    (torch.bfloat16, (1, 8192), "add_rms_norm_bf16_v1<1,1024x1>"),
    (torch.bfloat16, (1, 8200), "rms_norm_bf16_any<1,512x1>"),
    (torch.float16, (2, 770), "rms_norm_f16_shifted<1,32x2>"),
    (torch.float16, (2, 4096), "add_rms_norm_f16_v1<2,512x1>"),
    (torch.float32, (3, 100), "add_rms_norm_f32_v1<1,32x4>"),
    (torch.float32, (2, 103), "rms_norm_f32_shifted<1,32x4>"),
]

# In place, where a vector of one row may hold some of another that is written.
IN_PLACE = {
    "rms_norm_f16_shifted<1,32x2>": "rms_norm_f16_any<2,224x1>",
    "rms_norm_f32_shifted<1,32x4>": "rms_norm_f32_any<1,32x4>",
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("casting", [0, 1, 2])
@pytest.mark.parametrize(("dtype", "shape", "launch"), ADD)
def test_add(gpu: Any, dtype: Any, shape: tuple[int, ...], launch: str, casting: int, in_place: bool) -> None:
    x, residual, weight = made(*shape, dtype=dtype), made(*shape, dtype=dtype, seed=1), made(shape[-1], dtype=dtype)
    total = x + residual
    exact = reference.rms_norm(*wide(total, weight), EPS, casting)
    gpu.launches()
    if in_place:
        gpu.ops.fused_add_rms_norm_(x, residual, weight, EPS, casting)
        y, added = x, residual
    else:
        y, added = gpu.ops.fused_add_rms_norm(x, residual, weight, EPS, casting)
    assert gpu.launches() == (IN_PLACE.get(launch, launch) if in_place else launch)
    assert torch.equal(added, total)
    assert_close(y, exact, 2.0 if casting == 1 else 0.51, floor=2e-6)


BACKWARD = [
    (torch.bfloat16, (40, 128), "rms_norm_backward_bf16_v1<2,16x32> rms_norm_backward_columns<16,2x256>"),
    (torch.bfloat16, (70, 40), "rms_norm_backward_bf16_v1<2,8x64> rms_norm_backward_columns<5,2x256>"),
    (torch.bfloat16, (5, 8), "rms_norm_backward_bf16_v1<1,1x512> rms_norm_backward_columns<1,2x256>"),
    (torch.bfloat16, (2100, 64), "rms_norm_backward_bf16_v1<4,8x64> rms_norm_backward_columns<8,2x256>"),
    (torch.bfloat16, (9, 256), "rms_norm_backward_bf16_v1<1,32x16> rms_norm_backward_columns<32,2x256>"),
    (torch.bfloat16, (9, 264), "rms_norm_backward_bf16_v2<1,32x16> rms_norm_backward_columns<33,2x256>"),
    (torch.bfloat16, (30, 4096), "rms_norm_backward_bf16_v2_pair<4,256x1> rms_norm_backward_columns<128,8x64>"),
    (torch.bfloat16, (30, 5120), "rms_norm_backward_bf16_v2<4,320x1> rms_norm_backward_columns<160,8x64>"),
    (torch.bfloat16, (9, 4096), "rms_norm_backward_bf16_v2_pair<4,256x1> rms_norm_backward_columns<128,8x64>"),
    (torch.bfloat16, (3, 8192), "rms_norm_backward_bf16_v2_pair<2,512x1> rms_norm_backward_columns<256,8x64>"),
    (torch.bfloat16, (3, 12288), "rms_norm_backward_bf16_v4<2,384x1> rms_norm_backward_columns<384,8x64>"),
    (torch.bfloat16, (3, 16384), "rms_norm_backward_bf16_v4<2,512x1> rms_norm_backward_columns<512,8x64>"),
    (torch.bfloat16, (3, 16392), "rms_norm_backward_bf16_any<3,512x1> rms_norm_backward_columns<513,8x64>"),
    (torch.float16, (5, 12296), "rms_norm_backward_f16_v4<2,416x1> rms_norm_backward_columns<385,8x64>"),
    (torch.float16, (50, 1000), "rms_norm_backward_f16_v2<20,64x1> rms_norm_backward_columns<125,2x256>"),
    (torch.float16, (200, 1000), "rms_norm_backward_f16_v2<20,64x1> rms_norm_backward_columns<125,2x256>"),
    (torch.float16, (9, 111), "rms_norm_backward_f16_any<3,32x4> rms_norm_backward_columns<14,2x256>"),
    (torch.float32, (9, 1028), "rms_norm_backward_f32_v2<8,160x1> rms_norm_backward_columns<65,4x128>"),
    (torch.float32, (5, 8192), "rms_norm_backward_f32_v4<2,512x1> rms_norm_backward_columns<256,8x64>"),
    (torch.float32, (5, 1), "rms_norm_backward_f32_any<2,32x4> rms_norm_backward_columns<1,2x256>"),
    (torch.float32, (4, 777), "rms_norm_backward_f32_any<4,224x1> rms_norm_backward_columns<98,2x256>"),
]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("casting", [0, 2])
@pytest.mark.parametrize(("dtype", "shape", "launch"), BACKWARD)
def test_backward(gpu: Any, dtype: Any, shape: tuple[int, ...], launch: str, casting: int, fused: bool) -> None:
    grad, x, weight = made(*shape, dtype=dtype, seed=1), made(*shape, dtype=dtype), made(shape[-1], dtype=dtype, seed=2)
    gpu.launches()
    if fused:
        grad_sum = made(*shape, dtype=dtype, seed=3)
        ours = gpu.ops.fused_add_rms_norm_backward(grad, grad_sum, x, weight, EPS, casting)
        exact = reference.fused_add_rms_norm_backward(*wide(grad, grad_sum, x, weight), EPS, casting)
    else:
        ours = gpu.ops.rms_norm_backward(grad, x, weight, EPS, casting)
        exact = reference.rms_norm_backward(*wide(grad, x, weight), EPS, casting)
    assert gpu.launches() == launch
    assert_close(ours[0], exact[0], 0.51, floor=5e-6)
    assert_close(ours[1], exact[1], 0.51, floor=2e-5)
    again = (
        gpu.ops.fused_add_rms_norm_backward(grad, grad_sum, x, weight, EPS, casting)
        if fused
        else gpu.ops.rms_norm_backward(grad, x, weight, EPS, casting)
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_unaligned_rows_go_through_the_general_kernel(gpu: Any, dtype: Any) -> None:
    x, weight = unaligned(made(3, 512, dtype=dtype)), made(512, dtype=dtype, seed=1)
    gpu.launches()
    y = gpu.ops.rms_norm(x, weight, EPS, 0)
    assert gpu.launches() == f"rms_norm_{NAMES[dtype]}_any<3,128x1>"
    assert_close(y, reference.rms_norm(*wide(x, weight), EPS, 0), 0.51)
    assert_close(gpu.ops.rms_norm(x.contiguous().clone(), unaligned(weight), EPS, 0), y.double(), 1.0)


def test_strided_rows_are_read_where_they_lie(gpu: Any) -> None:
    wide_rows = made(4, 3, 96, dtype=torch.bfloat16)
    weight = made(64, dtype=torch.bfloat16)
    for x in (wide_rows[..., :64], wide_rows[..., 1:65], wide_rows.transpose(0, 1)[..., :64], wide_rows[:1, :1, 16:80]):
        y = gpu.ops.rms_norm(x, weight, EPS, 0)
        assert y.is_contiguous()
        assert_close(y, reference.rms_norm(*wide(x, weight), EPS, 0), 0.51)


def test_in_place_beside_each_other(gpu: Any) -> None:
    room = made(6, 128, dtype=torch.float16)
    x, residual, weight = room[:, :64], room[:, 64:], made(64, dtype=torch.float16)
    y, total = gpu.ops.fused_add_rms_norm(x, residual, weight, EPS, 0)
    gpu.ops.fused_add_rms_norm_(x, residual, weight, EPS, 0)
    assert torch.equal(x, y)
    assert torch.equal(residual, total)


def test_nothing_is_launched_for_nothing(gpu: Any) -> None:
    gpu.launches()
    for shape in ((0, 8), (3, 0), (0,), (2, 0, 8)):
        weight = made(shape[-1])
        assert gpu.ops.rms_norm(torch.empty(shape), weight, EPS, 0).shape == shape
        y, total = gpu.ops.fused_add_rms_norm(torch.empty(shape), torch.empty(shape), weight, EPS, 0)
        assert y.shape == total.shape == shape
    assert gpu.launches() == ""
    grad_x, grad_weight = gpu.ops.rms_norm_backward(torch.empty(0, 8), torch.empty(0, 8), made(8), EPS, 0)
    assert grad_x.shape == (0, 8)
    assert torch.equal(grad_weight, torch.zeros(8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nan_and_infinity_stay_what_they_are(gpu: Any, dtype: Any) -> None:
    x = made(3, 64, dtype=dtype)
    x[0, 5], x[1, 7] = float("nan"), float("inf")
    weight = torch.full((64,), -0.0, dtype=dtype)
    y = gpu.ops.rms_norm(x, weight, EPS, 0)
    assert y[0].isnan().all()
    assert torch.equal(y[1].isnan(), torch.arange(64) == 7)
    assert torch.equal(torch.signbit(y[2]), ~torch.signbit(x[2]))


def test_a_row_of_zeros(gpu: Any) -> None:
    assert torch.equal(gpu.ops.rms_norm(torch.zeros(2, 64), torch.ones(64), EPS, 0), torch.zeros(2, 64))
    assert gpu.ops.rms_norm(torch.zeros(1, 64), torch.ones(64), 0.0, 0).isnan().all()


# (shape, kernel of the forward, kernel of the gradients) for a float32 weight
WIDE_WEIGHT = [
    ((5, 128), "any", "v2"),
    ((40, 1024), "any", "v2"),
    ((9, 4096), "any", "v2_pair"),
    ((2, 10248), "any", "any"),  # more than two vectors for each of 640 threads
    ((9, 57), "any", "any"),
]


@pytest.mark.parametrize("casting", [0, 1, 2])
@pytest.mark.parametrize(("shape", "forward", "backward"), WIDE_WEIGHT)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_a_float32_weight(
    gpu: Any, dtype: Any, shape: tuple[int, ...], forward: str, backward: str, casting: int
) -> None:
    x, residual, grad = (made(*shape, dtype=dtype, seed=seed) for seed in (0, 1, 2))
    weight = made(shape[-1], seed=3)
    gpu.launches()
    y = gpu.ops.rms_norm(x, weight, EPS, casting)
    assert gpu.launches().startswith(f"rms_norm_{NAMES[dtype]}_{forward}<")
    assert_close(y, reference.rms_norm(*wide(x, weight), EPS, casting), 2.0 if casting == 1 else 0.51, floor=2e-6)
    both = gpu.ops.fused_add_rms_norm(x, residual, weight, EPS, casting)
    assert torch.equal(both[1], x + residual)
    assert torch.equal(both[0], gpu.ops.rms_norm(both[1], weight, EPS, casting))
    gpu.launches()
    grad_x, grad_weight = gpu.ops.rms_norm_backward(grad, x, weight, EPS, casting)
    assert gpu.launches().startswith(f"rms_norm_backward_{NAMES[dtype]}_{backward}<")
    right = reference.rms_norm_backward(*wide(grad, x, weight), EPS, casting)
    assert grad_weight.dtype == torch.float32
    assert_close(grad_x, right[0], floor=1e-5)
    assert_close(grad_weight, right[1], floor=2e-5)
