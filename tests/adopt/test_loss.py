"""The loss of causal language models: every keyword as the own loss takes it, or the own loss."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import forwards, instances  # noqa: E402
from tests.adopt import zoo  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]
CLASSES = 97


def losses(dtype: Any = torch.float32) -> tuple[Any, Any, dict[str, Any]]:
    """The own loss, ours, and logits with labels, of which some do not count."""
    model = zoo.make("llama", dtype)
    own = model.loss_function
    assert precast.adopt(model).ok
    logits = (torch.randn(2, 9, CLASSES) * 3).to(dtype)
    labels = torch.randint(CLASSES, (2, 9))
    labels[0, :4] = -100
    labels[1, 5] = 3
    return own, model.loss_function, {"logits": logits, "labels": labels, "vocab_size": CLASSES}


def with_gradient(loss: Any, given: dict[str, Any]) -> tuple[Any, Any]:
    logits = given["logits"].clone().requires_grad_()
    value = loss(**{**given, "logits": logits})
    return value.detach(), torch.autograd.grad(value.sum(), logits)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_items_in_batch": 7},
        {"num_items_in_batch": torch.tensor(7)},
        {"num_items_in_batch": torch.tensor([7])},  # keeps its dimension: the own loss
        {"num_items_in_batch": 7.5},  # likewise
        {"ignore_index": 3, "labels": torch.arange(18).view(2, 9)},
        {"shift_labels": torch.arange(18).view(2, 9)},
        {"label_smoothing": 0.1},  # the own loss reads no such keyword
        {"labels": torch.full((2, 9), -100)},  # no token counts
    ],
    ids=["plain", "items", "tensor", "vector", "fraction", "ignored", "shifted", "smoothing", "none"],
)
def test_every_keyword_is_that_of_the_own_loss(options: dict[str, Any], dtype: Any) -> None:
    own, ours, given = losses(dtype)
    (a, gradient), (b, other) = (with_gradient(loss, {**given, **options}) for loss in (own, ours))
    assert a.shape == b.shape and a.dtype == b.dtype and other.dtype == dtype
    torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(other, gradient, equal_nan=True)


def test_other_logits_go_to_the_own_loss() -> None:
    own, ours, given = losses()
    wide = {**given, "logits": given["logits"].double()}
    assert torch.equal(own(**wide), ours(**wide))


def test_logits_stay_and_a_second_backward_is_the_first_again() -> None:
    _, ours, given = losses()
    logits = given["logits"].clone().requires_grad_()
    loss = ours(**{**given, "logits": logits})
    first, second = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(logits.detach(), given["logits"])
    assert torch.equal(first, second)


def test_undo_copies_and_pickles_keep_the_own_loss() -> None:
    model = zoo.make("llama")
    own = model.loss_function
    precast.adopt(model)
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert instances.is_ours(one.loss_function)
        precast.undo_adopt(one)
        assert one.loss_function is own


def test_a_loss_of_the_caller_is_left_alone() -> None:
    model = zoo.make("llama")
    model.loss_function = lambda **_: torch.zeros(())
    left = {group.kind: group.note for group in precast.adopt(model).left}
    assert left["loss"] == "its loss was replaced before"


def test_a_loss_with_another_source_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.loss import loss_utils

    def fixed_cross_entropy(source: Any, target: Any, *_: Any, **__: Any) -> Any:
        return torch.nn.functional.cross_entropy(source, target)

    model = zoo.make("llama")
    monkeypatch.setattr(loss_utils, "fixed_cross_entropy", fixed_cross_entropy)
    left = {group.kind: group.note for group in precast.adopt(model).left}
    assert left["loss"] == "no rule knows what its loss does"


@pytest.mark.parametrize("logits", [True, False])
def test_half_precision_with_a_loss_scale_has_the_own_gradients(logits: bool, device: str) -> None:
    batch = {"input_ids": torch.randint(CLASSES, (4, 32), generator=torch.Generator(device).manual_seed(0))}
    batch |= {"labels": batch["input_ids"], "num_items_in_batch": torch.tensor(65536)}

    def gradients(model: Any) -> list[Any]:
        with torch.autocast(device, torch.float16):
            loss = model(**batch).loss
        (loss * 65536.0).backward()
        return [p.grad for p in model.parameters()]

    model = zoo.make("llama")
    own = gradients(copy.deepcopy(model))
    assert precast.adopt(model, logits=logits).ok
    for ours, theirs in zip(gradients(model), own, strict=True):
        assert (ours - theirs).norm() <= 2e-3 * theirs.norm()


class RoundsEarly(torch.autograd.Function):
    """A loss whose gradient is stored in the dtype of the logits before a scale is known."""

    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any, items: Any) -> Any:
        with torch.enable_grad():
            x = logits.detach().requires_grad_()
            total = torch.nn.functional.cross_entropy(x.float(), target, reduction="sum")
            loss = total / ((target != -100).sum() if items is None else items)
        ctx.save_for_backward(torch.autograd.grad(loss, x)[0])
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, slope: Any) -> tuple[Any, ...]:
        return ctx.saved_tensors[0] * slope, None, None


def test_a_kernel_that_rounds_before_the_scale_is_known_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(logits: Any, target: Any, ignore_index: int, num_items_in_batch: Any) -> Any:
        return RoundsEarly.apply(logits, target, num_items_in_batch)

    monkeypatch.setattr(forwards, "cross_entropy", early)
    left = {group.kind: group.note for group in precast.adopt(zoo.make("llama")).left}
    assert left["loss"].startswith("its loss: it rounds in another order in float16")
