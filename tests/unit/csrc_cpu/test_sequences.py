"""Convolutions, norms with a gate and state updates at every CPU level, near float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.convolution import reference  # noqa: E402
from precast.ops.norm import reference as norms  # noqa: E402
from precast.ops.state_space import reference as states  # noqa: E402
from tests.ops.convolution_cases import assert_close, cuts, made_call, step  # noqa: E402
from tests.ops.state_space_cases import made_call as made_update  # noqa: E402
from tests.ops.tensors import made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAW = torch.ops.precast


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_near_float64(sequence_levels: Any, level: str, dtype: Any) -> None:
    sequence_levels.choose(level)
    for last, channels, tokens in itertools.product((False, True), (1, 17, 70), (0, 3, 37)):
        call = made_call(dtype, last, channels, tokens, 4, *cuts("starts", tokens, 2))
        y, state = RAW.causal_conv1d(*call, True, True)
        right, end = reference.causal_conv1d(*call, True, True)
        assert torch.equal(state, end)
        assert_close(y, right)
        grads = torch.randn_like(y), torch.randn_like(state)
        found = RAW.causal_conv1d_backward(*grads, *call, True)
        for ours, theirs in zip(found, reference.causal_conv1d_backward(*grads, *call, True), strict=True):
            assert_close(ours, theirs, 8)
        after = step(dtype, last, channels, 4, 5, 2, torch.int32, torch.int64)
        again = [one.clone() if i == 1 else one for i, one in enumerate(after)]
        assert_close(RAW.causal_conv1d_update_(*after, True), reference.causal_conv1d_update_(*again, True))
    for columns, first in itertools.product((1, 33, 1100), (False, True)):
        x, gate, grad = (made(3, columns, dtype=dtype, seed=seed) for seed in (1, 2, 3))
        given = (x, gate, made(columns, dtype=dtype, seed=4), 1e-6, 0, first, False, 0)
        assert_close(RAW.rms_norm_gated(*given), norms.rms_norm_gated(*given))
        found = RAW.rms_norm_gated_backward(grad, *given)
        for ours, theirs in zip(found, norms.rms_norm_gated_backward(grad, *given), strict=True):
            assert_close(ours, theirs, 8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_states(state_levels: Any, level: str, dtype: Any) -> None:
    state_levels.choose(level)
    for wide, size in itertools.product((False, True), (1, 16, 33)):
        call = made_update(dtype, wide, (2, 4, 17, 2, size), torch.int64)
        again = call[0].clone()
        assert_close(RAW.selective_state_update_(*call), states.selective_state_update_(again, *call[1:]), 8)
        assert_close(call[0], again, 8)
