"""Models of forty tasks: none makes ``adopt`` raise, none is undone, and each is itself again afterwards."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from tests.adopt import tasks  # noqa: E402
from tests.adopt.picture import changes, picture  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]


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


class Among(torch.nn.Module):
    """Takes and returns what has no dense elements, beside what has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: Any, other: Any) -> Any:
        return {"y": self.norm(x), "other": other, "meta": x.to("meta"), "whole": x.to(torch.float8_e4m3fn)}


@pytest.mark.parametrize("other", ["sparse", "jagged", "endless", "complex", "empty"])
def test_tensors_without_comparable_elements_are_left_out(other: str) -> None:
    others = {
        "sparse": torch.eye(4).to_sparse(),
        "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "endless": torch.full((4, 2), torch.nan),
        "complex": torch.ones(4, 2, dtype=torch.complex64),
        "empty": torch.ones(4, 0),
    }
    report = precast.adopt(Among(), (torch.randn(4, 8), others[other]))
    assert report.ok, report
    assert {one.output for one in report.compared if "gradient" not in one.output} == {"y", "y, parameters hidden"}
    assert ("other: no element is finite" in report.not_compared) == (other in ("endless", "empty"))


def test_elements_that_are_not_finite_must_stay_so() -> None:
    from precast._adopt.compare import compare
    from precast._adopt.measured import Measured

    masked = torch.tensor([1.0, -torch.inf, torch.nan])
    (same,) = compare(Measured({"y": masked}, {}, {}), Measured({"y": masked.clone()}, {}, {}), [])
    assert same.holds and same.difference == 0
    for other in ([1.0, torch.inf, torch.nan], [1.0, -torch.inf, 0.0], [torch.nan, -torch.inf, torch.nan]):
        (one,) = compare(Measured({"y": masked}, {}, {}), Measured({"y": torch.tensor(other)}, {}, {}), [])
        assert not one.holds


def test_below_the_normal_numbers_nothing_differs() -> None:
    from precast._adopt.compare import compare
    from precast._adopt.measured import Measured

    one, other = ({"y": torch.tensor([value])} for value in (1e-42, 1.2e-42))
    (found,) = compare(Measured(one, {}, {}), Measured(other, {}, {}), [])
    assert found.difference > 0 and found.holds


def test_a_module_that_errs_as_its_proof_allows_is_noise() -> None:
    """A block that computes in float32 in any dtype shows none in a wider dtype."""
    from precast._adopt.noise import _erring

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        y = torch.randn(64, 64, dtype=dtype)
        moved = (_erring({"y": (y, None)}, 1)["y"][0].double() / y.double() - 1).abs()
        assert 0 < moved.max() <= max(2.0**-19, 2 * torch.finfo(dtype).eps)
        assert (moved > 0).double().mean() < (0.02 if dtype != torch.float32 else 1.1)
        assert torch.equal(_erring(y, 1), _erring(y, 1)) and not torch.equal(_erring(y, 1), _erring(y, 2))


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
