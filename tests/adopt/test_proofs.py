"""A proof is of what it read: a class, function or module that differs from it has a proof of its own, or none."""

from __future__ import annotations

import copy
import pickle
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import command, instances, seen, source  # noqa: E402
from tests.adopt import zoo  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]
Patch = pytest.MonkeyPatch


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.eval()(input_ids=zoo.ids()).logits


def doubled(self: Any, hidden_states: Any) -> Any:
    return self.weight * hidden_states * 2


def negated(self: Any, x: Any) -> Any:
    return -x


def passing(self: Any, hidden_states: Any, **_: Any) -> Any:
    return hidden_states, None


def one_norm() -> tuple[Any, Any]:
    """A class of norms of its own, with a known source, and an instance."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    own = LlamaRMSNorm.forward
    forward = types.FunctionType(own.__code__, own.__globals__, "forward")
    cls = type("LlamaRMSNorm", (LlamaRMSNorm,), {"forward": forward, "__module__": LlamaRMSNorm.__module__})
    return cls, cls(64)


def code(cls: Any) -> None:
    def forward(self: Any, hidden_states: Any) -> Any:
        return self.weight * hidden_states * 2

    cls.forward.__code__ = forward.__code__


def method(cls: Any) -> None:
    cls.forward = doubled


@pytest.mark.parametrize("patch", [method, code])
def test_a_class_that_is_patched_between_two_adoptions_is_read_again(patch: Any) -> None:
    cls, norm = one_norm()
    x = torch.randn(4, 64)
    assert precast.adopt(torch.nn.Sequential(norm), x).replaced
    precast.undo_adopt(norm)
    patch(cls)
    report = precast.adopt(torch.nn.Sequential(norm), x)
    assert {group.note for group in report.left} == {"no rule knows what its forward does"}
    assert torch.equal(norm(x), norm.weight * x * 2)


def test_an_attention_that_is_patched_between_two_adoptions_is_read_again(monkeypatch: Patch) -> None:
    model = zoo.make("qwen3")
    precast.adopt(model)
    logits(model)
    precast.undo_adopt(model)
    monkeypatch.setattr(type(model.model.layers[0].self_attn), "forward", passing)
    right = logits(model)
    assert "rotary" not in {group.kind for group in precast.adopt(model).replaced}
    torch.testing.assert_close(logits(model), right)


def test_what_a_global_name_means_is_read_again(monkeypatch: Patch) -> None:
    from transformers.models.llama import modeling_llama

    before = source.fingerprint(modeling_llama.LlamaRMSNorm)
    monkeypatch.setattr(modeling_llama, "torch", types.ModuleType("other"))
    assert source.fingerprint(modeling_llama.LlamaRMSNorm) != before
    monkeypatch.undo()
    assert source.fingerprint(modeling_llama.LlamaRMSNorm) == before


@pytest.mark.parametrize("attribute", ["norm", "layers.0.mlp", "layers.0.self_attn", "layers.0.self_attn.q_norm"])
def test_a_class_that_is_patched_after_the_adoption_counts_in_the_next_call(attribute: str, monkeypatch: Patch) -> None:
    model = zoo.make("qwen3")
    adopted = copy.deepcopy(model)
    report = precast.adopt(adopted)
    cls = type(model.model.get_submodule(attribute))
    own = cls.forward

    def other(self: Any, *given: Any, **named: Any) -> Any:
        result = own(self, *given, **named)
        return (result[0] * 2, *result[1:]) if isinstance(result, tuple) else result * 2

    monkeypatch.setattr(cls, "forward", other)
    right = logits(model)
    for one in (adopted, copy.deepcopy(adopted), pickle.loads(pickle.dumps(adopted))):
        torch.testing.assert_close(logits(one), right)
    assert any(f"{cls.__name__}" in line and "has another source" in line for line in command.drift(report))
    monkeypatch.undo()
    torch.testing.assert_close(logits(adopted), logits(model))


def gelu_of_transformers(python: bool) -> Any:
    from transformers.activations import GELUActivation

    return GELUActivation(use_gelu_python=python)


def rounded_gelu(x: Any) -> Any:
    return (torch.nn.functional.gelu(x.float()) * 1.01).to(x.dtype)


def of_value(function: Any) -> Any:
    act = gelu_of_transformers(False)
    act.act = function
    return act


def test_activations_of_one_class_that_differ_have_proofs_of_their_own() -> None:
    model = zoo.make("llama")
    acts = [gelu_of_transformers(False), of_value(rounded_gelu)]
    for layer, act in zip(model.model.layers, acts, strict=True):
        layer.mlp.act_fn = act
    right = logits(model)
    report = precast.adopt(model)
    assert report.ok
    replaced = [name for group in report.replaced if group.kind == "gated_mlp" for name in group.modules]
    assert replaced == ["model.layers.0.mlp"]
    torch.testing.assert_close(logits(model), right)


def test_a_class_without_a_name_to_find_it_by_is_adopted_and_the_report_says_so() -> None:
    class Local(torch.nn.SiLU):
        pass

    model = zoo.make("llama")
    for layer in model.model.layers:
        layer.mlp.act_fn = Local()
    report = precast.adopt(model)
    assert report.ok and "gated_mlp" in {group.kind for group in report.replaced}
    (line,) = command.drift(report)
    assert "Local.forward has another source: 2965b2158fe00ac0 then, none (there is no " in line


def test_equal_activations_share_a_proof(monkeypatch: Patch) -> None:
    from precast._adopt import recognise

    proved: list[Any] = []
    prove = recognise._prove
    monkeypatch.setattr(recognise, "_prove", lambda rule, *more: proved.append(rule.kind) or prove(rule, *more))
    for python in (False, True):
        model = zoo.make("qwen3")
        for layer in model.model.layers:
            layer.mlp.act_fn = gelu_of_transformers(python)
        proved.clear()
        precast.adopt(model)
        assert sorted(proved) == ["gated_mlp", "rms_norm", "rms_norm"]


def changed(act: Any) -> None:
    act.act = rounded_gelu


def shadowed(act: Any) -> None:
    act.forward = rounded_gelu


@pytest.mark.parametrize("change", [changed, shadowed])
def test_an_activation_that_is_changed_after_the_adoption_counts(change: Any) -> None:
    model = zoo.make("llama")
    for layer in model.model.layers:
        layer.mlp.act_fn = gelu_of_transformers(False)
    adopted = copy.deepcopy(model)
    assert "gated_mlp" in {group.kind for group in precast.adopt(adopted).replaced}
    again = pickle.loads(pickle.dumps(copy.deepcopy(adopted)))
    proof = again.model.layers[0].mlp.forward.keywords["_proof"]
    assert not seen.unproved(again.model.layers[0].mlp, proof)
    assert not seen.is_changed(again.model.layers[0].mlp, again.model.layers[0].mlp.forward.args[2])
    for one in (model, adopted, again):
        change(one.model.layers[1].mlp.act_fn)
    for one in (adopted, again):
        torch.testing.assert_close(logits(one), logits(model))


def test_states_of_modules() -> None:
    def state(module: Any, **attributes: Any) -> Any:
        module.__dict__.update(attributes)
        return seen.state_of(module)

    act, config = torch.nn.SiLU, object()
    assert state(act(), config=config, many=[1, {"a": 2.0}]) == state(act(), config=config, many=[1, {"a": 2.0}])
    assert state(torch.nn.Linear(2, 3)) == state(torch.nn.Linear(2, 3))
    different = [
        (act(), act(inplace=True)),
        (torch.nn.Linear(2, 3), torch.nn.Linear(2, 4)),
        (torch.nn.Linear(2, 3), torch.nn.Linear(2, 3).bfloat16()),
        (torch.nn.Sequential(act()), torch.nn.Sequential(act(True))),
        (torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)),  # buffers have values
    ]
    assert all(state(one) != state(other) for one, other in different)
    assert state(act(), config=object()) != state(act(), config=object())
    assert state(act(), a=1) != state(act(), a=True)
    own, other = act(), act()
    assert state(own, act=own.forward) == state(other, act=other.forward)
    assert state(own, act=own.forward) != state(act(), act=own.forward)
    around = act()
    assert state(around, inside=[around]) == state(around, inside=[around])


@pytest.mark.parametrize("name", ["rotate_half", "SiLUActivation", "norm", "loss", "table"])
def test_a_kept_report_sees_all_that_was_read(name: str, monkeypatch: Patch) -> None:
    from transformers import activations
    from transformers.loss import loss_utils
    from transformers.models.qwen3 import modeling_qwen3

    model = zoo.make("qwen3")
    if name == "SiLUActivation":
        for layer in model.model.layers:
            layer.mlp.act_fn = activations.SiLUActivation()
    report = precast.adopt(model)
    assert command.drift(report) == ()
    patches: dict[str, tuple[Any, str, Any]] = {
        "rotate_half": (modeling_qwen3, "rotate_half", rounded_gelu),
        "SiLUActivation": (activations.SiLUActivation, "forward", negated),
        "norm": (modeling_qwen3.Qwen3RMSNorm, "forward", doubled),
        "loss": (loss_utils, "fixed_cross_entropy", rounded_gelu),
    }
    if name == "table":
        monkeypatch.setitem(loss_utils.LOSS_MAPPING, "ForCausalLM", rounded_gelu)
    else:
        monkeypatch.setattr(*patches[name])
    drift = command.drift(report)
    assert drift and all(" has another source: " in line for line in drift)
    if name == "SiLUActivation":
        monkeypatch.delattr(activations, "SiLUActivation")
        (line,) = command.drift(report)
        assert line.endswith("then, none (there is no transformers.activations.SiLUActivation.forward) here")


def of_itself(module: Any) -> Any:
    return copy.copy(module)


def replica(module: Any) -> Any:
    return module._replicate_for_data_parallel()


@pytest.mark.parametrize(
    "copied", [of_itself, replica, lambda one: of_itself(replica(one)), lambda one: of_itself(of_itself(one))]
)
def test_a_shallow_copy_computes_with_its_own_weights(copied: Any) -> None:
    for norm in (torch.nn.LayerNorm(64), torch.nn.RMSNorm(64, eps=1e-6)):
        x = torch.randn(4, 64)
        precast.adopt(torch.nn.Sequential(norm), x)
        before, state = norm(x), dict(vars(norm))
        other = copied(norm)
        other._parameters = {"weight": torch.nn.Parameter(torch.full((64,), 10.0)), "bias": None}
        torch.testing.assert_close(other(x), 10 * before)
        assert torch.equal(norm(x), before) and vars(norm) == state
        assert type(other) is type(norm)
        if "forward" in vars(norm):  # what rounds otherwise in an old torch is not replaced
            assert other.forward.args[0] is other and precast.undo_adopt(other) == 1
            assert not vars(other).keys() & {"forward", *instances._HELPERS}
        torch.testing.assert_close(other(x), 10 * before)


@pytest.mark.parametrize("copied", [of_itself, replica])
def test_shallow_copies_of_a_model_call_their_own_children(copied: Any) -> None:
    model = zoo.make("qwen3_moe")
    adopted = copy.deepcopy(model)
    precast.adopt(adopted, logits=False)
    for one in (model, adopted):
        weights = {name: module._parameters for name, module in one.named_modules()}
        for name, module in [*one.named_modules()][1:]:
            parent, _, attribute = name.rpartition(".")
            one.get_submodule(parent)._modules[attribute] = copied(module)
        # What was copied has other weights; a call of the original shows.
        for name, module in one.named_modules():
            module._parameters = {
                key: None if value is None else torch.nn.Parameter(value.detach() * 1.5)
                for key, value in weights[name].items()
            }
    given = {"input_ids": zoo.ids(), "labels": zoo.ids()}
    with torch.no_grad():
        torch.testing.assert_close(adopted(**given).loss, model(**given).loss)
        torch.testing.assert_close(copied(adopted)(**given).loss, model(**given).loss)
        torch.testing.assert_close(logits(adopted), logits(model))


def test_copies_of_a_copy_are_pickled() -> None:
    norm = torch.nn.LayerNorm(64)
    precast.adopt(torch.nn.Sequential(norm))
    again = pickle.loads(pickle.dumps(copy.deepcopy(copy.copy(norm))))
    assert vars(again).keys() == vars(norm).keys()
    assert all(vars(again)[name].args[0] is again for name in ("forward", *instances._HELPERS))
