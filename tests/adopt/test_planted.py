"""The mistakes that users of patches reported, each planted: the certificate names it and puts the model back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import forwards, instances, recognise, run  # noqa: E402
from precast._adopt.report import Report  # noqa: E402
from precast._adopt.rules import RULES  # noqa: E402
from tests.adopt import zoo  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]

Forward = Callable[..., Any]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, device: str) -> Callable[[Any, str, Forward], Report]:
    """Adopts a model with one more forward, bound to the module of a name, that no probe has proved."""
    examine = recognise.examine

    def adopt(model: Any, name: str, forward: Forward) -> Report:
        def more(*args: Any, **options: Any) -> Iterator[recognise.Found]:
            module = model.get_submodule(name)
            yield from (one for one in examine(*args, **options) if one.module is not module)
            exact = recognise.Exact(lambda one: functools.partial(forward, one), "planted", None, device)
            yield recognise.Found(name, module, "planted", "", exact)

        monkeypatch.setattr(recognise, "examine", more)
        return precast.adopt(model)

    return adopt


def assert_refused(report: Report, model: Any, output: str) -> None:
    """The report names the output, and nothing is patched."""
    assert not report.ok
    assert report.undone.startswith(output), report
    assert all("forward" not in vars(module) for module in model.modules())


def test_a_correct_forward_is_not_refused(planted: Any) -> None:
    assert planted(zoo.make("llama"), "model.norm", instances.own).ok


def test_a_dropped_attention_mask(planted: Any) -> None:
    def without_mask(module: Any, *given: Any, **named: Any) -> Any:
        return instances.own(module, *given, **{**named, "attention_mask": None})

    model = zoo.make("llama")
    assert_refused(planted(model, "model", without_mask), model, "loss differs by ")


def test_a_loss_that_ignores_the_number_of_items(planted: Any) -> None:
    def without_items(module: Any, *given: Any, num_items_in_batch: Any = None, **named: Any) -> Any:
        return instances.own(module, *given, **named)

    model = zoo.make("llama")
    assert_refused(planted(model, "", without_items), model, "loss, num_items_in_batch differs by ")


def test_a_weight_read_outside_its_module(planted: Any) -> None:
    def fused(module: Any, **named: Any) -> Any:
        result = instances.own(module, **named, output_hidden_states=True)
        result["logits"] = torch.nn.functional.linear(result.hidden_states[-1], module.lm_head.weight)
        return result

    model = zoo.make("llama")
    assert_refused(
        planted(model, "", fused), model, "outputs with hidden parameters: the model reads parameters outside"
    )


def test_an_adapter_that_is_passed_over(planted: Any) -> None:
    import peft

    def fused(module: Any, x: Any) -> Any:
        linear = torch.nn.functional.linear
        gate, up = linear(x, module.gate_proj.weight), linear(x, module.up_proj.weight)
        return module.down_proj(precast.ops.silu_and_mul(gate, up))

    options = {"r": 4, "target_modules": ["gate_proj", "up_proj"], "init_lora_weights": False}
    model = peft.get_peft_model(zoo.make("llama"), peft.LoraConfig(**options))
    assert_refused(planted(model, "base_model.model.model.layers.0.mlp", fused), model, "loss differs by ")


def test_a_rounding_in_another_order() -> None:
    (norms,) = (rule for rule in RULES if rule.kind == "rms_norm")
    import dataclasses

    def wrong(module: Any, eps: str, casting: str, device: str) -> Any:
        return functools.partial(
            forwards.rms_norm, module, "none" if casting == "llama" else "llama", eps, True, device
        )

    model = zoo.make("llama", torch.bfloat16)
    report = run.adopt_by((dataclasses.replace(norms, bind=wrong),), model)
    assert_refused(report, model, "model.norm rounds in another order: ")


def test_a_class_that_is_patched_for_all(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.make("llama")
    cls = type(model.model.norm)
    monkeypatch.setattr(cls, "forward", cls.forward)  # what puts the class back after this test

    own = cls.forward

    def better(self: Any, x: Any) -> Any:
        return own(self, x)

    def everywhere(module: Any, x: Any) -> Any:
        cls.forward = better
        return own(module, x)

    assert_refused(planted(model, "model.norm", everywhere), model, "the class LlamaRMSNorm was changed")


def test_a_version_with_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    from precast._adopt import command

    model = zoo.make("llama")
    report = precast.adopt(model)
    assert command.drift(report) == ()
    cls = type(model.model.norm)

    def forward(self: Any, hidden_states: Any) -> Any:
        return self.weight * hidden_states

    monkeypatch.setattr(cls, "forward", forward)
    name = f"{cls.__module__}.{cls.__qualname__}"
    before = next(group.fingerprint for group in report.replaced if group.kind == "rms_norm")
    (found,) = command.drift(report)
    assert found.startswith(f"{name} has another source: {before} then, ")
    left = {group.cls: group.note for group in precast.adopt(zoo.make("llama")).left}
    assert left[name] == "no rule knows what its forward does"
