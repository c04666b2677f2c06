"""The device code of norms with a gate, and of norms by length, run on the CPU: every kernel, group and rounding."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.norm import reference  # noqa: E402
from tests.unit.csrc.emulated import Emulated, made, unaligned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("norm",)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

# dtype, rows, columns, group, kernel
ROWS = [
    (BF16, 9, 128, 0, "bf16_v1"),
    (BF16, 3, 2048, 256, "bf16_v1"),
    (F16, 5, 64, 32, "f16_v1"),
    (F32, 4, 1024, 512, "f32_v1"),
    (F32, 3, 40, 8, "f32_v1"),
    (F16, 5, 33, 11, "f16_any"),
    (BF16, 2, 9000, 4500, "bf16_any"),
    (F32, 2, 4100, 0, "f32_any"),
]


def assert_close(ours: Any, theirs: Any, units: float = 2.0) -> None:
    unit = {F32: 2e-6, F16: 1e-3, BF16: 8e-3}[ours.dtype]
    torch.testing.assert_close(ours, theirs, rtol=units * unit, atol=units * unit)


@pytest.mark.parametrize(("dtype", "rows", "columns", "group", "kernel"), ROWS, ids=str)
def test_every_kernel(gpu: Emulated, dtype: Any, rows: int, columns: int, group: int, kernel: str) -> None:
    x, gate, grad = (made(rows, columns, dtype=dtype, seed=seed) for seed in (1, 2, 3))
    for wide, llama, norm_first, sigmoid in itertools.product((None, False, True), *[(False, True)] * 3):
        weight = None if wide is None else made(columns, dtype=F32 if wide else dtype, seed=4)
        call = (x, gate, weight, 1e-6, int(llama), norm_first, sigmoid, group)
        gpu.launches()
        assert_close(gpu.ops.rms_norm_gated(*call), reference.rms_norm_gated(*call))
        assert gpu.launches().startswith(f"gated_norm_{kernel}<")
        found = gpu.ops.rms_norm_gated_backward(grad, *call)
        assert gpu.launches().startswith(f"gated_norm_backward_{kernel}<")
        for ours, theirs in zip(found, reference.rms_norm_gated_backward(grad, *call), strict=True):
            assert_close(ours, theirs, 8.0)
    assert_close(gpu.ops.l2_norm(x, 1e-6), reference.l2_norm(x, 1e-6))
    assert_close(gpu.ops.l2_norm_backward(grad, x, 1e-6), reference.l2_norm_backward(grad, x, 1e-6), 8.0)


def test_more_rows_than_workers_and_strides(gpu: Emulated) -> None:
    """Each worker keeps to one group; views are read where they lie, unaligned ones too."""
    packed = made(3000, 3 * 24, seed=5)
    for x in (packed[:, 24:48], unaligned(packed[:, :24])):
        call = (x, packed[:, 48:], made(24, seed=6), 1e-6, 1, False, False, 8)
        assert_close(gpu.ops.rms_norm_gated(*call), reference.rms_norm_gated(*call))
        found = gpu.ops.rms_norm_gated_backward(packed[:, :24], *call)
        for ours, theirs in zip(found, reference.rms_norm_gated_backward(packed[:, :24], *call), strict=True):
            assert_close(ours, theirs, 60.0)


def test_nothing(gpu: Emulated) -> None:
    nothing, weight = made(0, 8), made(8)
    assert gpu.ops.rms_norm_gated(nothing, nothing, weight, 1e-6, 0, True, False, 0).shape == (0, 8)
    *_, grad_weight = gpu.ops.rms_norm_gated_backward(nothing, nothing, nothing, weight, 1e-6, 0, True, False, 4)
    assert not grad_weight.any()
