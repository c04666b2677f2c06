"""The device code of softmax, run thread by thread on the CPU and held against fp64."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.softmax import reference  # noqa: E402
from tests.unit.csrc import emulated  # noqa: E402
from tests.unit.csrc.emulated import Emulated  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("softmax",)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
INFINITY = float("inf")


made = functools.partial(emulated.made, scale=3.0)


def masks(*shape: int, seed: int = 0) -> Any:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.4


def assert_close(ours: Any, exact: Any, terms: Any = None) -> None:
    """Half a unit in the last place of the dtype, and 2e-6 of what was added up."""
    assert ours.shape == exact.shape
    assert ours.is_contiguous()
    kind = torch.finfo(ours.dtype)
    allowed = 2e-6 * (exact.abs() if terms is None else terms) + 1e-30
    if ours.dtype != F32:
        allowed = allowed + 0.501 * kind.eps * torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=kind.tiny))))
    worst = ((ours.double() - exact).abs() / allowed).max().item() if exact.numel() else 0.0
    assert worst <= 1.0, f"{worst} times the allowed error"


FORWARD = [
    (BF16, (2, 5, 128), "softmax_bf16_v4<2,16x8>", "softmax_bf16_causal_v4<3,32x4>"),
    (BF16, (3, 6, 256), "softmax_bf16_v4<5,32x4>", "softmax_bf16_causal_v4<5,32x4>"),
    (BF16, (5, 264), "softmax_bf16_v4<2,32x4>", "softmax_bf16_causal_v4<2,32x4>"),
    (BF16, (9, 505), "softmax_bf16_shifted<3,32x4>", "softmax_bf16_shifted<3,32x4>"),
    (BF16, (9, 507), "softmax_bf16_shifted<5,32x2>", "softmax_bf16_shifted<5,32x2>"),
    (BF16, (2, 16377), "softmax_bf16_shifted<2,512x1>", "softmax_bf16_shifted<2,512x1>"),
    (BF16, (2, 16379), "softmax_bf16_any<2,512x1>", "softmax_bf16_any<2,512x1>"),
    (F32, (2, 7, 77), "softmax_f32_shifted<4,32x4>", "softmax_f32_shifted<4,32x4>"),
    (BF16, (3, 1000), "softmax_bf16_v4<2,32x2>", "softmax_bf16_causal_v4<2,32x2>"),
    (BF16, (3, 2048), "softmax_bf16_v4<3,256x1>", "softmax_bf16_causal_v8<3,32x1>"),
    (BF16, (2, 2200), "softmax_bf16_v4<2,160x1>", "softmax_bf16_causal_v8<2,64x1>"),
    (BF16, (1, 16392), "softmax_bf16_v8<1,288x1>", "softmax_bf16_causal_v8<1,288x1>"),
    (BF16, (1, 32768), "softmax_bf16_v8<1,512x1>", "softmax_bf16_causal_v8<1,512x1>"),
    (BF16, (2, 32776), "softmax_bf16_any<2,512x1>", "softmax_bf16_any<2,512x1>"),
    (F16, (7, 17), "softmax_f16_shifted<1,4x32>", "softmax_f16_shifted<1,4x32>"),
    (F16, (2, 2049), "softmax_f16_shifted<2,160x1>", "softmax_f16_shifted<2,160x1>"),
    (F16, (2, 4096), "softmax_f16_v4<2,256x1>", "softmax_f16_causal_v8<2,64x1>"),
    (F32, (5, 1), "softmax_f32_any<2,32x4>", "softmax_f32_any<2,32x4>"),
    (F32, (9, 20), "softmax_f32_v4<1,8x16>", "softmax_f32_causal_v4<3,32x4>"),
    (F32, (2, 2, 2048), "softmax_f32_v4<4,256x1>", "softmax_f32_causal_v8<4,64x1>"),
    (F32, (1, 16384), "softmax_f32_any<1,512x1>", "softmax_f32_causal_v8<1,512x1>"),
    (F32, (1, 16385), "softmax_f32_any<1,512x1>", "softmax_f32_any<1,512x1>"),
]


@pytest.mark.parametrize(("dtype", "shape", "launch", "causal_launch"), FORWARD)
def test_forward(gpu: Emulated, dtype: Any, shape: tuple[int, ...], launch: str, causal_launch: str) -> None:
    x = made(*shape, dtype=dtype)
    gpu.launches()
    y = gpu.ops.scaled_softmax(x, 0.7)
    assert gpu.launches() == launch
    assert_close(y, reference.scaled_softmax(x.double(), 0.7))
    y = gpu.ops.scaled_aligned_causal_softmax(x, 0.7)
    assert gpu.launches() == causal_launch
    assert_close(y, reference.scaled_aligned_causal_softmax(x.double(), 0.7))
    mask = masks(*shape)
    for kind, value, uniform in ((mask, -INFINITY, False), (mask.to(torch.uint8) * 7, -10000.0, True)):
        y = gpu.ops.scaled_masked_softmax(x, kind, 0.7, value, uniform)
        assert gpu.launches() == launch
        assert_close(y, reference.scaled_masked_softmax(x.double(), mask, 0.7, value, uniform))


BACKWARD = [
    (BF16, (2, 5, 128), "softmax_backward_bf16_v4<2,16x8>"),
    (BF16, (3, 2048), "softmax_backward_bf16_v4<3,256x1>"),
    (BF16, (1, 16384), "softmax_backward_bf16_v4<1,512x1>"),
    (BF16, (2, 16392), "softmax_backward_bf16_any<2,512x1>"),
    (F16, (3, 1000), "softmax_backward_f16_v4<2,32x2>"),
    (F16, (7, 17), "softmax_backward_f16_shifted<1,4x32>"),
    (BF16, (9, 505), "softmax_backward_bf16_shifted<3,32x4>"),
    (BF16, (9, 507), "softmax_backward_bf16_shifted<5,32x2>"),
    (BF16, (2, 16377), "softmax_backward_bf16_shifted<2,512x1>"),
    (BF16, (2, 16379), "softmax_backward_bf16_any<2,512x1>"),
    (F32, (2, 2200), "softmax_backward_f32_v4<2,288x1>"),
    (F32, (5, 1), "softmax_backward_f32_any<2,32x4>"),
    (F32, (1, 16385), "softmax_backward_f32_any<1,512x1>"),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "shape", "launch"), BACKWARD)
def test_backward(gpu: Emulated, dtype: Any, shape: tuple[int, ...], launch: str, causal: bool) -> None:
    y, grad = torch.softmax(made(*shape), -1).to(dtype), made(*shape, dtype=dtype, seed=1)
    if causal:
        behind = reference._behind_diagonal(y)
        y, grad = y.masked_fill(behind, float("nan")), grad.masked_fill(behind, float("nan"))
    gpu.launches()
    ours = gpu.ops.scaled_softmax_backward(grad, y, 0.7, causal)
    assert gpu.launches() == launch
    wide_grad, wide_y = grad.double().nan_to_num(), y.double().nan_to_num()
    exact = reference.scaled_softmax_backward(wide_grad, wide_y, 0.7, causal)
    terms = 0.7 * wide_y * (wide_grad.abs() + (wide_grad * wide_y).abs().sum(-1, keepdim=True))
    assert_close(ours, exact, terms)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("columns", [24, 23, 2051, 16385])
def test_a_nan_before_the_diagonal_makes_no_gradient_behind_it(gpu: Emulated, dtype: Any, columns: int) -> None:
    y, grad = torch.softmax(made(4, columns), -1).to(dtype), made(4, columns, dtype=dtype, seed=1)
    grad[:, 0] = float("nan")
    ours = gpu.ops.scaled_softmax_backward(grad, y, 0.7, True)
    behind = reference._behind_diagonal(y)
    assert (ours[behind] == 0).all()
    assert ours[~behind].isnan().all()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("queries", "columns"), [(5, 3), (3, 5), (40, 24), (24, 40), (9, 2056), (1, 64), (70, 8)])
def test_causal_of_any_shape(gpu: Emulated, dtype: Any, queries: int, columns: int) -> None:
    x = made(2, queries, columns, dtype=dtype)
    behind = reference._behind_diagonal(x)
    x[behind.expand_as(x)] = float("nan")  # never read
    y = gpu.ops.scaled_aligned_causal_softmax(x, 0.5)
    assert_close(y, reference.scaled_aligned_causal_softmax(x.double(), 0.5))
    assert (y[:, behind] == 0).all()
    assert not torch.signbit(y[:, behind]).any()


@pytest.mark.parametrize("columns", [24, 21, 1100, 40000])
def test_the_mask_is_broadcast(gpu: Emulated, columns: int) -> None:
    x = made(2, 3, 2, columns, dtype=BF16)
    whole = masks(2, 3, 2, columns + 8)
    for mask in (
        whole[..., :columns],
        whole[..., 1 : columns + 1],
        whole[:1, :, :, :columns],
        whole[:, :1, :, :columns],
        whole[:1, :1, :, :columns],
        whole[:, :1, :1, :columns],
        whole[0, 0, 0, :columns],
        whole[0, :, :1, 8:],
        whole[:, :1, :, :columns].expand(2, 3, 2, columns),
        masks(columns, 2).t(),
    ):
        y = gpu.ops.scaled_masked_softmax(x, mask, 0.7, -INFINITY, False)
        assert_close(y, reference.scaled_masked_softmax(x.double(), mask, 0.7, -INFINITY, False))


@pytest.mark.parametrize("queries", [384, 385])
def test_heads_take_turns_with_a_large_mask(gpu: Emulated, queries: int) -> None:
    """From 12 M bytes of mask on, and only with whole tiles of 64 queries: no smaller tensors can show it."""
    x, mask = made(2, queries, 32768, dtype=BF16), masks(queries, 32768)
    y = gpu.ops.scaled_masked_softmax(x, mask, 0.7, -INFINITY, False)
    for ours, head in zip(y, x, strict=True):
        exact = torch.softmax((head.float() * 0.7).masked_fill(mask, -INFINITY), -1)
        torch.testing.assert_close(ours.float(), exact, rtol=2**-8, atol=1e-9)


@pytest.mark.parametrize("columns", [1, 7, 24, 600, 33000])
@pytest.mark.parametrize("value", [-INFINITY, -10000.0, 300.0])
@pytest.mark.parametrize("uniform", [False, True])
def test_a_fully_masked_row(gpu: Emulated, columns: int, value: float, uniform: bool) -> None:
    x = made(5, columns)
    x[1] = float("nan")
    x[2] = -INFINITY
    mask = torch.ones(5, columns, dtype=torch.bool)
    mask[3:, 0] = False
    x[4, 0] = float("nan")
    y = gpu.ops.scaled_masked_softmax(x, mask, 1.0, value, uniform)
    assert torch.equal(y[:3], torch.full((3, columns), 1 / columns if uniform else 0.0))
    assert_close(y[3], reference.scaled_masked_softmax(x[3].double(), mask[3], 1.0, value, uniform))
    assert y[4].isnan().all()


@pytest.mark.parametrize("columns", [24, 23, 33000])
def test_special_values_are_as_in_torch(gpu: Emulated, columns: int) -> None:
    x = made(6, columns)
    x[0, 3], x[1, 4], x[2, 5] = float("nan"), INFINITY, -INFINITY
    x[3], x[4] = -INFINITY, torch.finfo(F32).min
    y = gpu.ops.scaled_softmax(x, 1.0)
    # Held against float64, as torch's own rounding differs from processor to processor: what is special, exactly; the
    # others within 1e-6, and what rounding the distance to the largest, and its product with log2(e), may add.
    exact = torch.softmax(x.double(), -1)
    assert torch.equal(y.isnan(), exact.isnan())
    assert torch.equal(y == 0, exact == 0)
    distance = (x.amax(-1, keepdim=True) - x).double()
    rest = exact > 0
    allowed = (1e-6 + 2 * distance[rest] / 2**24) * exact[rest] + 1e-30
    assert bool(((y[rest].double() - exact[rest]).abs() <= allowed).all())
    square = torch.full((24, 24), float("nan"))
    y = gpu.ops.scaled_upper_triang_masked_softmax(square, 1.0)
    behind = reference._behind_diagonal(square)
    assert (y[behind] == 0).all()
    assert y[~behind].isnan().all()


def test_strided_and_unaligned_rows(gpu: Emulated) -> None:
    wide = made(4, 3, 96, dtype=BF16)
    for x in (wide[..., :64], wide[..., 1:65], wide.transpose(0, 1)[..., :64], wide[..., ::2], wide[:1, :1, 16:80]):
        assert_close(gpu.ops.scaled_softmax(x, 0.7), reference.scaled_softmax(x.double(), 0.7))
        causal = gpu.ops.scaled_aligned_causal_softmax(x, 0.7)
        assert_close(causal, reference.scaled_aligned_causal_softmax(x.double(), 0.7))


def test_nothing_is_launched_for_nothing(gpu: Emulated) -> None:
    gpu.launches()
    for shape in ((0, 8), (3, 0), (2, 0, 8)):
        x = torch.empty(shape)
        assert gpu.ops.scaled_softmax(x, 1.0).shape == shape
        assert gpu.ops.scaled_masked_softmax(x, x != 0, 1.0, -INFINITY, False).shape == shape
        assert gpu.ops.scaled_aligned_causal_softmax(x, 1.0).shape == shape
        assert gpu.ops.scaled_softmax_backward(x, x, 1.0, True).shape == shape
    assert gpu.launches() == ""
