"""Which samples and models the comparison takes, what it says where it cannot measure, and what it leaves behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import forwards, samples  # noqa: E402
from precast._adopt.compare import compare  # noqa: E402
from precast._adopt.measured import Measured  # noqa: E402
from precast._adopt.small import small  # noqa: E402
from tests.adopt import zoo  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, *QUIET]
IDS = zoo.ids()


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: Any, mask: Any) -> Any:
        return self.norm(x) * mask[:2, :8]


@pytest.mark.parametrize("kind", ["a vector", "a mask"])
def test_what_is_no_batch_of_rows_is_not_turned(kind: str) -> None:
    """Turned round, it would give another result, whose distance is no noise and hides every difference."""
    one, sample = (Masked(), (torch.randn(2, 8), torch.randn(9, 9))) if kind == "a mask" else (model(), torch.randn(8))
    report = precast.adopt(one, sample)
    assert report.ok and report.replaced
    assert report.not_compared == ("noise of the batch in another order: its tensors are not rows of one batch",)
    assert max(compared.noise for compared in report.compared) < 1e-3


def test_gradients_of_zero_say_nothing_about_the_noise_of_others() -> None:
    zero, noise, value = torch.zeros(3), torch.full((3,), 1e-7), torch.ones(3)
    untouched, other = (
        Measured({}, dict(zip("abc", given, strict=True)), {}) for given in ((zero, zero, value), (noise, noise, value))
    )
    (worst,) = compare(untouched, Measured({}, {"a": zero, "b": zero, "c": value + 1}, {}), [other])
    assert worst.output == "gradient of c" and not worst.holds


def test_integer_parameters_are_not_hidden() -> None:
    one = model()
    number = torch.nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False)
    torch.nn.Module.register_parameter(one[0], "number", number)
    report = precast.adopt(one, torch.randn(2, 8))
    assert report.ok and not report.not_compared
    assert one[0].number is number


def test_a_model_that_cannot_be_copied() -> None:
    one = model()
    one.lock = threading.Lock()
    report = precast.adopt(one, torch.randn(2, 8))
    assert report.ok and report.replaced
    assert report.not_compared == ("noise in a wider dtype: TypeError: cannot pickle '_thread.lock' object",)


def test_an_error_while_comparing_puts_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    one, kernel = model(), forwards._layer_norm

    def fails(x: Any, *others: Any) -> Any:
        if x.shape == (2, 8):
            raise RuntimeError("planted")
        return kernel(x, *others)

    monkeypatch.setattr(forwards, "_layer_norm", fails)
    report = precast.adopt(one, torch.randn(2, 8))
    assert report.undone == "outputs: RuntimeError: planted, which does not happen in the untouched model"
    assert not report.ok
    assert "forward" not in vars(one[1])


@pytest.mark.models
@pytest.mark.parametrize(
    ("sample", "cached"),
    [
        ({"input_ids": IDS}, True),
        ({"input_ids": IDS[:, :2]}, False),
        ({"input_ids": IDS, "attention_mask": torch.zeros(2, 1, 12, 12)}, False),
    ],
    ids=["no mask", "two tokens", "a mask of four dimensions"],
)
def test_samples_of_language_models(sample: dict[str, Any], cached: bool, device: str) -> None:
    report = precast.adopt(zoo.make("llama"), {name: value.to(device) for name, value in sample.items()})
    assert report.ok, report
    assert ("logits, from a cache" in {one.output for one in report.compared}) == cached


@pytest.mark.models
@pytest.mark.parametrize(
    "name",
    [
        "JambaForCausalLM",  # computes the kinds of its layers
        "RobertaForCausalLM",  # needs a token for padding
        "NemotronForCausalLM",  # by default, None for a number that it needs
        "GPTJForCausalLM",  # a width of its rotary embedding
        "XLNetLMHeadModel",  # -1 as its longest sequence
    ],
)
def test_a_small_model_of_a_class_takes_its_sample(name: str) -> None:
    model: Any = small(getattr(pytest.importorskip("transformers"), name))
    assert sum(p.numel() for p in model.parameters()) < 2_000_000
    batch = samples.sample(model.eval())
    assert batch is not None
    assert model(**batch).logits.isfinite().all()
