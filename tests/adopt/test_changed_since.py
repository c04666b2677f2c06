"""What is changed on an adopted model after its adoption counts in the next call, as on the untouched model."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import parametrize, prune  # noqa: E402

import precast  # noqa: E402
from tests.adopt import zoo  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]


class Tripled(torch.nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight * 3


def tripled(module: Any, name: str = "weight") -> None:
    parametrize.register_parametrization(module, name, Tripled())


def pruned(module: Any, name: str = "weight") -> None:
    torch.manual_seed(0)
    prune.random_unstructured(module, name, amount=0.5)


def assert_same_after(change: Callable[[Any], Any], name: str, **options: Any) -> tuple[Any, Any]:
    """Change a model, and an adopted copy of it, in one way; both give the same loss. Both models."""
    model = zoo.make(name)
    adopted = copy.deepcopy(model)
    report = precast.adopt(adopted, **options)
    assert report.ok and report.replaced, report
    models = []
    for one in (model, adopted):
        torch.manual_seed(3)
        models.append(change(one) or one)
    losses = [one(input_ids=zoo.ids(), labels=zoo.ids()).loss for one in models]
    assert losses[0].dim() == losses[1].dim() == 0
    torch.testing.assert_close(*losses)
    return models[0], models[1]


@pytest.mark.parametrize("change", [tripled, pruned])
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_computed_weights_of_a_norm(change: Any, kind: str) -> None:
    """Before the adoption, the norm is left alone."""
    norm = getattr(torch.nn, kind)(64, eps=1e-6)
    with torch.no_grad():
        norm.weight.mul_(torch.arange(64))
    x, adopted = torch.randn(4, 64), copy.deepcopy(norm)
    precast.adopt(torch.nn.Sequential(adopted), x)
    for one in (norm, adopted):
        change(one)
    torch.testing.assert_close(adopted(x), norm(x))
    report = precast.adopt(torch.nn.Sequential(norm, torch.nn.Softmax(-1)), x)
    (group,) = report.left
    assert group.note == "its weight or bias is computed for each call (a parametrization, pruning)"
    assert report.ok and report.replaced
    uncopied = ["noise in a wider dtype: RuntimeError: Only Tensors created explicitly by the user (graph leaves)"]
    assert [reason.partition(" support")[0] for reason in report.not_compared] == uncopied * (change is pruned)


def test_a_norm_whose_weight_is_no_parameter_but_none() -> None:
    """As diffusers makes norms without weights; one that it gets later rounds where this norm rounds with weights."""
    make = importlib.import_module("diffusers.models.normalization").RMSNorm
    norm = make(64, eps=1e-6, elementwise_affine=False).bfloat16()
    assert vars(norm)["weight"] is None
    x, adopted = torch.randn(256, 64).bfloat16(), copy.deepcopy(norm)
    report = precast.adopt(torch.nn.Sequential(adopted), x)
    assert report.ok and [group.kind for group in report.replaced] == ["rms_norm"], report
    torch.testing.assert_close(adopted(x), norm(x))
    for one in (norm, adopted):
        one.weight = torch.nn.Parameter(torch.linspace(-3, 3, 64).bfloat16())
    assert torch.equal(adopted(x), norm(x))


def test_computed_weights_of_query_norms() -> None:
    def change(model: Any) -> None:
        for layer in model.model.layers:
            tripled(layer.self_attn.q_norm)

    model, _ = assert_same_after(change, "qwen3")
    notes = {group.note for group in precast.adopt(model).left if group.kind == "rotary"}
    assert notes == {"the weights of its norms are computed for each call"}


def tanh() -> Any:
    return torch.nn.Tanh()


def patched() -> Any:
    act = torch.nn.SiLU()
    act.forward = torch.tanh
    return act


@pytest.mark.parametrize("act", [tanh, patched])
def test_an_activation_that_a_kernel_stands_for(act: Any) -> None:
    def gated(model: Any) -> None:
        for layer in model.model.layers:
            layer.mlp.act_fn = act()

    def experts(model: Any) -> None:
        for layer in model.model.layers:
            layer.mlp.experts.act_fn = act()

    assert_same_after(gated, "llama")
    assert_same_after(experts, "qwen3_moe")


def test_a_global_hook_sees_every_call() -> None:
    calls: list[list[str]] = [[], []]
    model = zoo.make("llama")
    adopted = copy.deepcopy(model)
    precast.adopt(adopted)
    for one, names in zip((model, adopted), calls, strict=True):
        hook = torch.nn.modules.module.register_module_forward_hook(
            lambda module, *_, to=names: to.append(type(module).__name__)
        )
        try:
            one(input_ids=zoo.ids())
        finally:
            hook.remove()
    assert calls[0] == calls[1]


def test_norms_that_the_rotation_stands_for() -> None:
    import peft

    def identity(model: Any) -> None:
        model.model.layers[0].self_attn.q_norm = torch.nn.Identity()

    def tuned(model: Any) -> Any:
        config = peft.LNTuningConfig(target_modules=["q_norm", "k_norm", "norm"], task_type="CAUSAL_LM")
        changed = peft.get_peft_model(model, config)
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.requires_grad else 0))
        return changed

    assert_same_after(identity, "qwen3")
    assert_same_after(tuned, "qwen3")


def resized(model: Any) -> None:
    model.resize_token_embeddings(120, mean_resizing=False)


def hooked(model: Any) -> None:
    model.lm_head.register_forward_hook(lambda _, __, logits: logits * 2)


def with_loss(model: Any) -> None:
    model.loss_function = lambda logits, labels, vocab_size, **_: logits.square().mean()


def low_rank(model: Any) -> Any:
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False))


@pytest.mark.parametrize("change", [resized, hooked, with_loss, low_rank, lambda model: tripled(model.lm_head)])
def test_a_head_or_a_loss_that_needs_logits_has_them(change: Any) -> None:
    assert_same_after(change, "llama", logits=False)


def test_the_arguments_of_a_model_without_logits_are_seen() -> None:
    """Trainers keep the columns of these names, and ``generate`` makes a mask if there is an argument for it."""

    def padded(model: Any) -> None:
        model.eval().generation_config.pad_token_id = 0

    model, adopted = assert_same_after(padded, "llama", logits=False)
    for one in (adopted, copy.deepcopy(adopted), pickle.loads(pickle.dumps(adopted))):
        assert [*inspect.signature(one.forward).parameters] == [*inspect.signature(model.forward).parameters]
    ids = zoo.ids().clone()
    ids[1, :5] = 0
    given = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    assert torch.equal(adopted.generate(ids, **given), model.generate(ids, **given))
