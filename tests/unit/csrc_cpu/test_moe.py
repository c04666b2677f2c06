"""Gating at every CPU level: the experts that plain torch chooses, the same bits at any level and thread count."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops.moe import reference  # noqa: E402
from tests.unit.csrc_cpu.tensors import assert_same_bits  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

ops.define("moe")
OPS = torch.ops.precast
INFINITY = float("inf")
# Up to sixteen experts are one group of lanes, up to 256 have one vector of maxima.
EXPERTS = (1, 2, 15, 16, 17, 60, 64, 255, 256, 257, 512, 1000, 1024)
PLAIN = (1, 1, False, False, False, 1.0)  # one group, a softmax without division


def made(experts: int, dtype: Any = torch.float32, tokens: int = 19) -> Any:
    """Whole numbers, so that many are equal."""
    numbers = torch.Generator().manual_seed(experts)
    return torch.randint(-9, 9, (tokens, experts), generator=numbers).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_experts_of_plain_torch_at_any_width(gating_levels: Any, level: str, dtype: Any) -> None:
    gating_levels.choose(level)
    for experts in EXPERTS:
        logits = made(experts, dtype)
        for k in {1, min(8, experts), min(40, experts)}:
            weights, ids = OPS.topk_gating(logits, None, k, *PLAIN)
            exact, wanted = reference.topk_gating(logits.double(), None, k, *PLAIN)
            assert torch.equal(ids, wanted)
            torch.testing.assert_close(weights.double(), exact, rtol=3e-6, atol=1e-9)


def test_groups(gating_levels: Any, level: str) -> None:
    gating_levels.choose(level)
    for experts, options in ((256, (8, 4, True)), (160, (8, 3, False)), (24, (3, 1, True))):
        logits, bias = made(experts), made(experts)[0] / 64
        args = (bias, 6, *options, True, True, 2.5)
        weights, ids = OPS.topk_gating(logits / 8, *args)
        exact, wanted = reference.topk_gating((logits / 8).double(), bias.double(), *args[1:])
        assert (ids == wanted).float().mean() > 0.95  # sigmoids of equal sums differ in their last bit
        torch.testing.assert_close(weights.double(), exact, rtol=1e-4, atol=1e-5)


def test_what_is_not_finite(gating_levels: Any, level: str) -> None:
    """NaN is the greatest, minus infinity the least and still chosen; other tokens do not notice."""
    gating_levels.choose(level)
    logits = made(64)
    right = OPS.topk_gating(logits, None, 4, *PLAIN)
    logits[3, 5:7] = float("nan")
    logits[4, 7], logits[5, :62], logits[6] = INFINITY, -INFINITY, -INFINITY
    weights, ids = OPS.topk_gating(logits, None, 4, *PLAIN)
    assert ids[3, :2].tolist() == [5, 6] and weights[3].isnan().all()
    assert ids[4, 0] == 7
    assert sorted(ids[5].tolist()) == [0, 1, 62, 63] and weights[5, 2:].tolist() == [0, 0]
    assert ids[6].tolist() == [0, 1, 2, 3]
    others = [0, 1, 2, *range(7, 19)]
    assert_same_bits([[weights[others]]], [[right[0][others]]])
    assert torch.equal(ids[others], right[1][others])


def test_the_same_bits_with_any_number_of_threads(gating_levels: Any, threads: Any) -> None:
    found = []
    for count in (1, 2, 7):
        threads(count)
        found.append(OPS.topk_gating(made(128, tokens=301) / 7, None, 8, *PLAIN))
    for weights, ids in found[1:]:
        assert_same_bits([[weights]], [[found[0][0]]])
        assert torch.equal(ids, found[0][1])


def test_the_same_bits_at_every_level_with_fma(gating_levels: Any) -> None:
    for experts in EXPERTS:
        found = gating_levels.each(lambda n=experts: OPS.topk_gating(made(n) / 7, None, 1, *PLAIN)[0])
        found.pop("baseline", None)
        levels = [[one] for one in found.values()]
        assert_same_bits([levels[0]] * len(levels), levels)
