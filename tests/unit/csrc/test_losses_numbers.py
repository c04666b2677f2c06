"""The device code of cross entropy, run thread by thread on the CPU and held against fp64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.losses import reference  # noqa: E402
from tests.unit.csrc.emulated import Emulated, made, unaligned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("losses",)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
IGNORED = 2


def called(rows: int, columns: int, dtype: Any, kind: Any = torch.int64) -> tuple[Any, ...]:
    """Logits, targets of which one is ignored, weights, and factors."""
    target = torch.randint(columns, (rows,), generator=torch.Generator().manual_seed(rows)).to(kind)
    target[0] = columns - 1
    target[rows // 2] = -5
    weight = made(columns).abs() + 0.1
    return made(rows, columns, dtype=dtype, scale=3.0), target, weight, torch.stack([torch.tensor(0.3), weight.sum()])


def assert_right(found: Any, logits: Any, *args: Any) -> None:
    """Losses to 3e-6 of what was added up, gradients to half a unit of their dtype and 3e-6."""
    losses, lse, grad = reference.cross_entropy_with_grad(logits.double(), *args)
    torch.testing.assert_close(found[0].double(), losses, rtol=3e-6, atol=3e-6, equal_nan=True)
    torch.testing.assert_close(found[1].double(), lse, rtol=3e-6, atol=3e-6, equal_nan=True)
    if len(found) == 3:
        unit = 0.0 if found[2].dtype == F32 else 0.501 * torch.finfo(found[2].dtype).eps
        torch.testing.assert_close(found[2].double(), grad, rtol=unit + 3e-6, atol=1e-6, equal_nan=True)


LAUNCHES = [
    (F32, (5, 1), "cross_entropy_f32_any<2,32x4>"),
    (F32, (9, 20), "cross_entropy_f32_v4<1,8x16>"),
    (F32, (2, 2048), "cross_entropy_f32_v4<2,256x1>"),
    (F32, (2, 8196), "cross_entropy_f32_any<2,512x1>"),
    (BF16, (5, 128), "cross_entropy_bf16_v4<1,16x8>"),
    (BF16, (3, 1000), "cross_entropy_bf16_v4<2,32x2>"),
    (BF16, (3, 1001), "cross_entropy_bf16_shifted<2,32x2>"),
    (BF16, (2, 16384), "cross_entropy_bf16_v4<2,512x1>"),
    (F16, (7, 17), "cross_entropy_f16_shifted<1,4x32>"),
    (F16, (2, 20000), "cross_entropy_f16_any<2,512x1>"),
    (BF16, (2, 16385), "cross_entropy_bf16_any<2,512x1>"),
    (F32, (3, 401), "cross_entropy_f32_shifted<2,32x2>"),
]


@pytest.mark.parametrize(("dtype", "shape", "launch"), LAUNCHES, ids=str)
def test_every_kernel_and_option(gpu: Emulated, dtype: Any, shape: tuple[int, int], launch: str) -> None:
    logits, target, weight, factors = called(*shape, dtype)
    plain, each = torch.tensor([0.3]), made(shape[0]).abs() + 0.1
    for args in (
        (target, None, each, -5, 0.1, 0.0),
        (target, weight, torch.cat([each, factors[1:]]), -5, 0.2, 1e-3),
        (target, None, None, -5, 0.0, 0.0),
        (target.int(), None, plain, -5, 0.1, 0.0),
        (target, weight, factors, -5, 0.0, 1e-3),
        (target, weight, factors, -5, 0.2, 1e-3),
    ):
        gpu.launches()
        assert_right(gpu.ops.cross_entropy_with_grad(logits, *args), logits, *args)
        assert gpu.launches() == launch
        assert_right(gpu.ops.cross_entropy(logits, *args), logits, *args)


@pytest.mark.parametrize("columns", [1000, 1001])
def test_in_place_strided_and_unaligned_rows(gpu: Emulated, columns: int) -> None:
    logits, *args = *called(6, columns, BF16), -5, 0.1, 1e-3
    room = made(6, columns + 8, dtype=BF16)
    for place in (room[:, :columns], room[:, 3 : columns + 3], unaligned(logits)):
        place.copy_(logits)
        losses = gpu.ops.cross_entropy_with_grad_(place, *args)
        assert_right((*losses, place), logits, *args)
    assert torch.equal(room[:, columns + 3 :], made(6, columns + 8, dtype=BF16)[:, columns + 3 :])


@pytest.mark.parametrize(("dtype", "rows", "columns"), [(F32, 1, 512), (F32, 5, 388), (BF16, 3, 1024), (F16, 5, 520)])
def test_rows_of_a_cluster(gpu: Emulated, dtype: Any, rows: int, columns: int) -> None:
    logits, target, weight, factors = called(rows, columns, dtype)
    gpu.c.emulated_clusters(64)
    try:
        for args, wide in (
            ((target, None, None, -5, 0.0, 1e-3), 2),
            ((target, None, torch.tensor([0.3]), -5, 0.1, 0.0), 2),
            ((target, None, made(rows).abs(), -5, 0.1, 0.0), 2),
            ((target, weight, factors, -5, 0.0, 0.0), 2),
            ((target, weight, factors, -5, 0.1, 0.0), 0),  # its kernel has no room for weights
        ):
            gpu.launches()
            assert_right(gpu.ops.cross_entropy_with_grad(logits, *args), logits, *args)
            place = logits.clone()
            assert_right((*gpu.ops.cross_entropy_with_grad_(place, *args), place), logits, *args)
            assert gpu.launches().count("_wide<") == wide
    finally:
        gpu.c.emulated_clusters(0)


@pytest.mark.parametrize("columns", [24, 700, 701])
def test_gradient_from_given_numbers(gpu: Emulated, columns: int) -> None:
    logits, target, weight, _ = called(6, columns, BF16)
    given = made(4, 6).abs()
    given[0] += 3
    found = gpu.ops.cross_entropy_backward(logits, target, given, weight)
    exact = reference.cross_entropy_backward(logits.double(), target, given.double(), weight.double())
    torch.testing.assert_close(found.double(), exact, rtol=0.01, atol=1e-2)


@pytest.mark.parametrize("columns", [24, 1001])
def test_scaled_rows(gpu: Emulated, columns: int) -> None:
    grad = made(5, columns, dtype=BF16)
    for factor in (torch.tensor([1.0, 2.0, 0.0, -0.5, 3.0]), torch.tensor([0.25])):
        scaled = unaligned(grad)
        gpu.ops.cross_entropy_scale_(scaled, factor)
        assert torch.equal(scaled, (grad.float() * factor.unsqueeze(-1)).to(BF16))


def test_targets_that_are_no_class_make_their_rows_nan(gpu: Emulated) -> None:
    for columns in (40, 41, 9000):
        logits, target = made(3, columns), torch.tensor([0, columns, -1])
        losses, lse, grad = gpu.ops.cross_entropy_with_grad(logits, target, None, None, -100, 0.0, 0.0)
        assert losses.isnan().tolist() == [False, True, True]
        assert grad.isnan().all(1).tolist() == [False, True, True]
        assert not lse.isnan().any()


@pytest.mark.parametrize("clusters", [0, 64])
def test_special_values(gpu: Emulated, clusters: int) -> None:
    infinity = float("inf")
    gpu.c.emulated_clusters(clusters)
    try:
        for columns in (40, 512) if clusters else (40, 41):
            x, target = made(6, columns), torch.tensor([0, 1, 7, 3, 0, 2])
            x[0, 3], x[1, 4], x[2, 5], x[3], x[4, 1:] = float("nan"), infinity, -infinity, -infinity, -infinity
            x[5] = torch.finfo(F32).min
            found = gpu.ops.cross_entropy(x, target, None, None, -100, 0.0, 0.0)[0]
            right = torch.nn.functional.cross_entropy(x, target, reduction="none")
            torch.testing.assert_close(found, right, equal_nan=True)
    finally:
        gpu.c.emulated_clusters(0)
