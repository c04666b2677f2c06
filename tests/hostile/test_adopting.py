"""Models that change as they are called, under the law of ``adopting``; and the law, shown refusing."""

from __future__ import annotations

import types
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from tests.hostile import adopting  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.filterwarnings("ignore")]


# With the loops of tests/ops/test_losses_in_training.py, 3,000 cases; in parts, which several processes share on a GPU.
COUNT, PARTS = 1848, 8


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("part", range(PARTS))
def test_the_law_is_kept(part: int, device: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = Counter(adopting.judge(case, device) for case in adopting.cases(2026, COUNT)[part::PARTS])
    finally:
        torch.set_num_threads(threads)
    assert found["adopted"] > COUNT // PARTS // 3
    assert found["adopted by its proofs, NOT COMPARED"] > COUNT // PARTS // 10
    assert found.total() == COUNT // PARTS


def counts(model: Any, sample: Any = None, *, dry_run: bool = False) -> Any:
    model.calls += 1
    return precast.adopt(model, sample, dry_run=dry_run)


def fires(model: Any, sample: Any = None, *, dry_run: bool = False) -> Any:
    model(torch.ones(2, adopting.WIDTH))
    return precast.adopt(model, sample, dry_run=dry_run)


def raises(model: Any, sample: Any = None, *, dry_run: bool = False) -> Any:
    raise RuntimeError("no sample")


def spoils(model: Any, sample: Any = None, *, dry_run: bool = False) -> Any:
    report = precast.adopt(model, sample, dry_run=dry_run)
    if not dry_run:
        model.norm.eps = 0.5
    return report


def remembers(model: Any, sample: Any = None, *, dry_run: bool = False) -> Any:
    """The class as it was when the model was adopted."""
    report = precast.adopt(model, sample, dry_run=dry_run)
    if not dry_run:
        model.norm.forward = types.MethodType(type(model.norm).forward, model.norm)
    return report


@pytest.mark.parametrize(
    ("adopt", "text"),
    [
        (counts, "dry run changed"),
        (fires, "hooks fired"),
        (raises, "raised RuntimeError"),
        (spoils, "outputs differ"),
        (remembers, "outputs differ"),
    ],
)
def test_a_broken_adopt_is_found(adopt: Any, text: str) -> None:
    case = adopting.Case("layer norm", torch.float32, (), (adopting.hooked,), (adopting.patched,), "", False, "right")
    with pytest.raises(adopting.Broken, match=text):
        adopting.judge(case, "cpu", adopt)
