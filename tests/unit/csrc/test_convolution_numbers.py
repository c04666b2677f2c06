"""The device code of the convolutions, run on the CPU: every kernel, every cut of a row, the states between them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.convolution import reference  # noqa: E402
from tests.ops.convolution_cases import assert_close, cuts, made_call, step  # noqa: E402
from tests.unit.csrc.emulated import Emulated  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("convolution",)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

# dtype, last, channels, tokens, width, kernel
KERNELS = [
    (BF16, True, 72, 45, 4, "bf16_w4"),
    (F16, True, 16, 9, 2, "f16_w4"),
    (F32, True, 8, 70, 3, "f32_w4"),
    (BF16, True, 8, 30, 8, "bf16_w8"),
    (F32, True, 12, 11, 6, "f32_w8"),
    (BF16, True, 7, 40, 4, "bf16_any"),
    (F16, False, 3, 13, 5, "f16_any"),
    (F32, False, 5, 0, 4, "f32_any"),
    (BF16, False, 3, 48, 4, "bf16_rows"),
    (F32, False, 2, 20, 8, "f32_rows_w8"),
    (F32, False, 2, 320, 3, "f32_rows"),
    (BF16, False, 1, 808, 4, "bf16_rows"),
    (F16, False, 2, 8, 2, "f16_rows"),
]


@pytest.mark.parametrize("cut", ["whole", "starts", "index"])
@pytest.mark.parametrize(("dtype", "last", "channels", "tokens", "width", "kernel"), KERNELS, ids=str)
def test_every_kernel(
    gpu: Emulated, dtype: Any, last: bool, channels: int, tokens: int, width: int, kernel: str, cut: str
) -> None:
    for seed, (wide, bias, silu) in enumerate(itertools.product([False, True], repeat=3)):
        index, starts = cuts(cut, tokens, seed)
        call = made_call(dtype, last, channels, tokens, width, index, starts, wide=wide, bias=bias, state=seed != 3)
        gpu.launches()
        y, state = gpu.ops.causal_conv1d(*call, silu, True)
        if cut == "whole" or "rows" not in kernel:
            assert gpu.launches().startswith(f"causal_conv1d_{kernel}<")
        right, last_tokens = reference.causal_conv1d(*call, silu, True)
        assert_close(y, right)
        assert torch.equal(state, last_tokens)
        grads = torch.randn_like(y), torch.randn_like(state) if seed else None
        found = gpu.ops.causal_conv1d_backward(*grads, *call, silu)
        for ours, theirs in zip(found, reference.causal_conv1d_backward(*grads, *call, silu), strict=True):
            assert_close(ours, theirs, sums=4 if tokens < 100 else 16)


@pytest.mark.parametrize(("last", "channels", "kernel"), [(True, 16, "w4"), (True, 5, "any"), (False, 16, "any")])
def test_updates(gpu: Emulated, last: bool, channels: int, kernel: str) -> None:
    for dtype, width, more, tokens, picks, turns in itertools.product(
        (F32, BF16), (2, 4), (0, 1, 6), (0, 1, 5, 8), (None, torch.int32, torch.int64), (None, torch.int32)
    ):
        call = step(dtype, last, channels, width, width - 1 + more, tokens, picks, turns)
        again = [one.clone() if i == 1 else one for i, one in enumerate(call)]
        gpu.launches()
        y = gpu.ops.causal_conv1d_update_(*call, True)
        length, by_channel = call[1].shape[2], tokens < 2 and turns is None
        chosen = f"s{length}" if not last and width <= 4 and length in (3, 4) and by_channel else kernel
        assert gpu.launches().startswith(f"causal_conv1d_update_{'f32' if dtype == F32 else 'bf16'}_{chosen}<")
        assert_close(y, reference.causal_conv1d_update_(*again, True))
        assert torch.equal(call[1], again[1])


def test_bad_numbers_reach_nothing_else(gpu: Emulated) -> None:
    """A slot that does not exist leaves its sequence out; starts of any order stay within the row."""
    call = step(F32, True, 16, 4, 3, 1, torch.int64, None)
    call[4][0] = 2**40
    before = call[1].clone()
    y = gpu.ops.causal_conv1d_update_(*call, False)
    assert not y[0].any() and torch.equal(call[1][3:], before[3:])
    for starts in ([5, 2, 9], [-3, 4, 2**30], [9, 9, 0]):
        given = torch.tensor(starts)
        gpu.ops.causal_conv1d(*made_call(F32, True, 8, 9, 4, None, given), True, True)
        call = made_call(F32, True, 8, 9, 4, None, given)
        gpu.ops.causal_conv1d_backward(torch.ones_like(call[0]), torch.ones(2, 8, 3), *call, True)
