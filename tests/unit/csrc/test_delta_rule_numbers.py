"""The device code of the delta rule token by token, run thread by thread on the CPU and held against fp64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.ops.test_delta_rule import ALLOWED, OF_STATES, double, made, off, pool, reference  # noqa: E402
from tests.unit.csrc.emulated import Emulated, unaligned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("delta_rule",)
F32, BF16 = torch.float32, torch.bfloat16
LAUNCHES = [
    ((64, 32), F32, F32, "delta_rule_f32_64<8,128x1>"),
    ((48, 72), BF16, F32, "delta_rule_f32_64<24,128x1>"),
    ((128, 64), BF16, F32, "delta_rule_f32_128<16,128x1>"),
    ((256, 32), torch.float16, F32, "delta_rule_f32_256<8,256x1>"),
    ((17, 33), F32, F32, "delta_rule_f32_any<16,512x1>"),
    ((64, 64), BF16, BF16, "delta_rule_bf16_64<8,128x1>"),
    ((112, 64), F32, BF16, "delta_rule_bf16_128<8,128x1>"),
    ((144, 24), BF16, BF16, "delta_rule_bf16_256<8,256x1>"),
    ((31, 65), BF16, BF16, "delta_rule_bf16_any<16,512x1>"),
]


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize(("dims", "dtype", "kind", "launch"), LAUNCHES, ids=str)
def test_every_kernel(gpu: Emulated, dims: tuple[int, int], dtype: Any, kind: Any, launch: str, by_key: bool) -> None:
    tensors, states = made(2, 3, dims=dims, dtype=dtype, by_key=by_key), pool(2, dims=dims, dtype=kind)
    gpu.launches()
    found = gpu.ops.gated_delta_rule(*tensors, states, None, 0.3, True)
    assert gpu.launches() == launch
    exact = reference.gated_delta_rule(*double(tensors), states.double(), None, 0.3, True)
    assert off(found[0], exact[0]) < ALLOWED[dtype] and off(found[1], exact[1]) < OF_STATES[kind]
    tensors[0] = unaligned(tensors[0])
    again = gpu.ops.gated_delta_rule(*tensors, states, None, 0.3, True)
    assert "_any<" in gpu.launches()
    assert off(again[0], exact[0]) < ALLOWED[dtype] and off(again[1], exact[1]) < OF_STATES[kind]


def test_sequences_that_follow_each_other(gpu: Emulated) -> None:
    tensors, starts = made(1, 9), torch.tensor([0, 0, 5, 9, 9])
    found = gpu.ops.gated_delta_rule(*tensors, None, starts, 0.3, False)
    exact = reference.gated_delta_rule(*double(tensors), None, starts, 0.3, False)
    assert off(found[0], exact[0]) < ALLOWED[F32] and off(found[1], exact[1]) < OF_STATES[F32]


@pytest.mark.parametrize("kind", [F32, BF16], ids=str)
def test_states_in_a_pool(gpu: Emulated, kind: Any) -> None:
    tensors, states = made(4, 3), pool(9, dtype=kind)
    table, accepted = torch.tensor([[3, 0, 7], [1, -1, 2], [-1, 4, 4], [8, 9, 99]]), torch.tensor([2, 1, 1, 3]).int()
    for indices, last in ((table, accepted), (table[:, 0].int(), None)):
        exact = states.double()
        out = gpu.ops.gated_delta_rule_update_(*tensors, states, indices, last, 0.3, True)
        right = reference.gated_delta_rule_update_(*double(tensors), exact, indices, last, 0.3, True)
        assert off(out, right) < ALLOWED[F32] and off(states, exact) < OF_STATES[kind]
        assert (out[2] == 0).all()
