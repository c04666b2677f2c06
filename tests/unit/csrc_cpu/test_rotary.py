"""Rotary embedding at every CPU level: every length of a head's last part, the same bits at any level."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.csrc_cpu.conftest import LEVELS, _levels_of

torch = pytest.importorskip("torch")

from precast.ops.rotary import reference  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BOTH = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])


@pytest.fixture
def levels() -> Iterator[Any]:
    yield from _levels_of("rotary_embedding")


def some(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_width(levels: Any, level: str, dtype: Any, interleaved: bool) -> None:
    """Near the exact numbers; what is not rotated stays; nothing is written beside the result."""
    levels.choose(level)
    for half in (*range(35), 63, 64, 65):
        for rest in (0, 1, 17):
            x = some(2, 3, 2 * half + rest).to(dtype)
            cos, sin = some(2, half).cos(), some(2, half).sin()
            ours, _ = torch.ops.precast.rotary_embedding(x, None, cos, sin, None, interleaved, False)
            exact, _ = reference.rotary_embedding(x.double(), None, cos, sin, None, interleaved, False)
            unit = 0 if dtype == torch.float32 else 0.51 * torch.finfo(dtype).eps
            assert bool(((ours.double() - exact).abs() <= unit * exact.abs() + 1e-6).all()), (half, rest)
            assert torch.equal(ours[..., 2 * half :], x[..., 2 * half :])
            room = torch.full((4, 3, x.shape[-1]), 7.0, dtype=dtype)
            room[1:3] = x
            torch.ops.precast.rotary_embedding_(room[1:3], None, cos, sin, None, interleaved, False)
            assert torch.equal(room[1:3], ours)
            assert bool((room[0] == 7).all()) and bool((room[3] == 7).all())


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_levels_agree(levels: Any, dtype: Any, interleaved: bool) -> None:
    """Bitwise with fused multiply-add; without, as near as one rounding more."""
    query, key = some(5, 4, 77).to(dtype), some(5, 2, 77).to(dtype)
    angle = some(9, 37)
    positions = torch.tensor([8, 0, 3, 3, 1])

    def compute() -> list[Any]:
        return [
            result
            for inverse in (False, True)
            for table in (torch.float32, dtype)
            for result in torch.ops.precast.rotary_embedding(
                query, key, angle.cos().to(table), angle.sin().to(table), positions, interleaved, inverse
            )
        ]

    results = levels.each(compute)
    plain = results.pop(LEVELS[0])
    for first, second in itertools.pairwise(results.values()):
        assert all(map(torch.equal, first, second))
    for result in results.values():
        for one, other in zip(result, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(levels: Any, level: str, dtype: Any) -> None:
    """NaN and infinity stay in their pair, and a turn by nothing changes no bit."""
    levels.choose(level)
    x = torch.tensor([1.0, float("nan"), float("inf"), -0.0, 3.0, 4.0, 5.0, 6.0]).to(dtype).view(1, 1, 8)
    still, _ = torch.ops.precast.rotary_embedding(
        x[..., 3:7], None, torch.ones(1, 2), torch.zeros(1, 2), None, False, False
    )
    assert torch.equal(still.view(-1), x.view(-1)[3:7])
    turned, _ = torch.ops.precast.rotary_embedding(
        x, None, torch.full((1, 4), 0.6), torch.full((1, 4), 0.8), None, False, False
    )
    assert turned.isnan().flatten().tolist() == [False, True, False, False, False, True, False, False]
    assert turned.isinf().flatten().tolist() == [False, False, True, False, False, False, True, False]
