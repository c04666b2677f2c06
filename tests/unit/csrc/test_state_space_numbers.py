"""The device code of the state-space ops, run on the CPU: both dtypes of a state, vectors and elements, slots."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.state_space import reference  # noqa: E402
from tests.ops.state_space_cases import assert_close, made_call  # noqa: E402
from tests.unit.csrc.emulated import Emulated  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("state_space",)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

# dtype, whether states are float32, batch, heads, rows, groups, size, kernel
SHAPES = [
    (BF16, False, 2, 4, 16, 1, 128, "bf16"),
    (BF16, True, 2, 4, 16, 2, 64, "bf16_wide"),
    (F16, False, 1, 2, 7, 2, 16, "f16"),
    (F16, True, 3, 2, 5, 1, 33, "f16_wide_any"),
    (F32, False, 2, 2, 3, 1, 256, "f32"),
    (F32, False, 3, 6, 6, 3, 9, "f32_any"),
    (BF16, False, 2, 2, 2, 1, 20, "bf16_any"),
]


@pytest.mark.parametrize(("dtype", "wide", "batch", "heads", "rows", "groups", "size", "kernel"), SHAPES, ids=str)
def test_every_kernel(
    gpu: Emulated, dtype: Any, wide: bool, batch: int, heads: int, rows: int, groups: int, size: int, kernel: str
) -> None:
    for seed, index in enumerate((None, torch.int32, torch.int64)):
        call = made_call(dtype, wide, (batch, heads, rows, groups, size), index, options=seed > 0)
        again = call[0].clone()
        gpu.launches()
        y = gpu.ops.selective_state_update_(*call)
        assert gpu.launches().startswith(f"state_update_{kernel}<")
        assert_close(y, reference.selective_state_update_(again, *call[1:]))
        assert_close(call[0], again)


def test_a_slot_that_does_not_exist(gpu: Emulated) -> None:
    call = made_call(F32, False, (2, 2, 4, 1, 8), torch.int64)
    call[9][0] = 2**40
    before = call[0].clone()
    assert not gpu.ops.selective_state_update_(*call)[0].any() and torch.equal(call[0][2:], before[2:])
