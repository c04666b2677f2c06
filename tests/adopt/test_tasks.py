"""Models of forty tasks: none makes ``adopt`` raise, none is undone, and each is itself again afterwards."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from tests.adopt import tasks  # noqa: E402
from tests.adopt.picture import changes, picture  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]


@pytest.mark.parametrize("name", tasks.NAMES)
def test_a_model_of_another_task(name: str) -> None:
    model, sample = tasks.make(name)
    before = picture(model, sample)
    report = precast.adopt(model, sample)
    assert not report.undone, report
    assert bool(report.replaced) == (name not in tasks.UNKNOWN)
    assert report.ok == (name not in tasks.UNCOMPARED), report
    assert bool(report.compared) == (name not in tasks.UNCOMPARED | tasks.UNKNOWN)
    assert all(group.kind != "unknown" for group in report.left)
    precast.undo_adopt(model)
    assert changes(before, picture(model, sample)) == []


def test_there_are_forty() -> None:
    assert len(tasks.NAMES) == 40


def test_a_sample_that_no_model_takes_is_not_compared() -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(8))
    for sample in (torch.randn(2, 9), (1, 2, 3), {"nothing": 1}, "text", [], {}, {3: 4}, object()):
        report = precast.adopt(model, sample)
        (reason,) = report.not_compared
        assert reason.startswith("no outputs: the untouched model does not take the sample: "), reason
        assert report.replaced and not report.ok and not report.undone
        assert "adopted by its proofs, NOT COMPARED" in str(report)
        precast.undo_adopt(model)


def test_a_property_that_raises_leaves_its_module() -> None:
    class Strange(torch.nn.Module):
        @property
        def loss_function(self) -> Any:
            raise KeyError("no loss")

    strange = type("StrangeForCausalLM", (Strange,), {})
    report = precast.adopt(torch.nn.Sequential(strange(), torch.nn.LayerNorm(8)), torch.randn(2, 8))
    (left,) = report.left
    assert left.note == "it cannot be examined: KeyError: 'no loss'"
    assert report.replaced
