"""Models that change as they are called, under the law of ``adopting``; and the law, shown refusing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from tests.hostile import adopting  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(("seed", "count"), [(2026, 200), pytest.param(7, 1000, marks=pytest.mark.long)])
def test_a_sample_keeps_the_law(seed: int, count: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = Counter(map(adopting.judge, adopting.cases(seed, count)))
    finally:
        torch.set_num_threads(threads)
    assert found["adopted"] > count // 3
    assert found["adopted by its proofs, NOT COMPARED"] > count // 10
    assert found.total() == count


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


@pytest.mark.parametrize(
    ("adopt", "text"),
    [(counts, "dry run changed"), (fires, "hooks fired"), (raises, "raised RuntimeError"), (spoils, "outputs differ")],
)
def test_a_broken_adopt_is_found(adopt: Any, text: str) -> None:
    case = adopting.Case("layer norm", torch.float32, (), (adopting.hooked,), "", False, "right")
    with pytest.raises(adopting.Broken, match=text):
        adopting.judge(case, adopt)
