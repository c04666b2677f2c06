"""The delta rule at every CPU level: near float64, and the same bits at the levels with FMA."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from tests.ops.test_delta_rule import check, made  # noqa: E402
from tests.unit.csrc_cpu.tensors import assert_same_bits  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DIMS = ((1, 1), (15, 17), (16, 32), (33, 31), (128, 128), (256, 65))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by_key", [False, True])
def test_near_float64_at_any_width(delta_levels: Any, level: str, by_key: bool, dtype: Any) -> None:
    # fails if a result is too far from float64
    delta_levels.choose(level)
    for dims in DIMS:
        check(made(1, 9, dims=dims, dtype=dtype, by_key=by_key), None, None, l2_norm=True)


def test_the_same_bits_at_every_level_with_fma(delta_levels: Any) -> None:
    for dims in DIMS:
        tensors = made(2, 9, dims=dims)
        found = delta_levels.each(lambda tensors=tensors: list(ops.gated_delta_rule(*tensors, l2_norm=True)))
        found.pop("baseline", None)
        levels = list(found.values())
        assert_same_bits([levels[0]] * len(levels), levels)
