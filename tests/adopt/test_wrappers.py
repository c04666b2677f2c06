"""Adopted models under what others wrap around them: adapters, checkpointing, compile, export and autocast."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import samples  # noqa: E402
from tests.adopt import zoo  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]


def pair(name: str = "llama", dtype: Any = torch.float32) -> tuple[Any, Any, dict[str, Any]]:
    """A model, an adopted copy of it, and a batch."""
    model = zoo.make(name, dtype)
    adopted = copy.deepcopy(model)
    report = precast.adopt(adopted)
    assert report.ok, report
    batch = samples.sample(model)
    assert batch is not None
    return model, adopted, dict(batch)


def gradients(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    model.zero_grad()
    model(**batch).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("first", ["adapter", "adopt"])
def test_adapters_of_peft(first: str) -> None:
    import peft

    config = peft.LoraConfig(
        r=4,
        target_modules=["q_proj", "gate_proj", "up_proj"],
        modules_to_save=["lm_head"],
        init_lora_weights=False,
    )
    untouched = zoo.make("llama")
    model = copy.deepcopy(untouched)
    if first == "adopt":
        assert precast.adopt(model).ok
    torch.manual_seed(1)
    model = peft.get_peft_model(model, config)
    torch.manual_seed(1)
    untouched = peft.get_peft_model(untouched, config)
    if first == "adapter":
        report = precast.adopt(model, samples.sample(model.base_model.model))
        assert report.ok, report
    batch = dict(samples.sample(zoo.make("llama")) or {})
    assert_alike(gradients(model.train(), batch), gradients(untouched.train(), batch))
    assert list(peft.get_peft_model_state_dict(model)) == list(peft.get_peft_model_state_dict(untouched))


def test_tied_weights_stay_tied() -> None:
    import transformers

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**zoo._TEXT, tie_word_embeddings=True))
    assert precast.adopt(model).ok
    assert model.lm_head.weight is model.model.embed_tokens.weight
    again = copy.deepcopy(model)
    assert again.lm_head.weight is again.model.embed_tokens.weight


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    model, adopted, batch = pair()
    plain = gradients(model, batch)
    adopted.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    adopted.enable_input_require_grads()
    assert_alike(gradients(adopted.train(), batch), plain)


def test_a_checkpointing_model_is_adopted() -> None:
    model = zoo.make("llama").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    report = precast.adopt(model)
    assert report.ok, report
    assert any(one.output.startswith("gradient") for one in report.compared)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_compile_sees_one_graph_of_the_modules_own_forwards(name: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model, adopted, batch = pair(name)
    counter = CompileCounterWithBackend("eager")
    batch.pop("labels", None)
    with torch.no_grad():
        expected = model.eval()(**batch, return_dict=True).logits
        compiled = torch.compile(adopted.eval(), backend=counter, fullgraph=True)(**batch, return_dict=True).logits
    assert counter.frame_count == 1
    called = {str(node.target) for graph in counter.graphs for node in graph.graph.nodes}
    assert not [target for target in called if "precast" in target]
    assert torch.equal(compiled, expected)  # the same calls in the same order
    torch._dynamo.reset()


@pytest.mark.parametrize("how", ["around", "in place", "a layer"])
def test_a_compiled_model_is_compared_without_a_graph(how: str) -> None:
    """Each way in which a model is compared would be compiled again, and a graph has no kernels of ours."""
    if not hasattr(torch.compiler, "set_stance"):
        pytest.skip("needs torch.compiler.set_stance, of torch 2.6")
    model, compiled = zoo.make("llama"), {"backend": lambda *_: pytest.fail("a graph was compiled")}
    given = torch.compile(model, **compiled) if how == "around" else model
    if how == "in place":
        model.compile(**compiled)
    elif how == "a layer":
        model.model.layers[0] = torch.compile(model.model.layers[0], **compiled)
    report = precast.adopt(given)
    assert report.ok and {one.output for one in report.compared} >= {"loss", "logits"}, report


def test_an_exported_model_needs_only_torch() -> None:
    model, adopted, batch = pair("bert")
    batch.pop("labels")
    with torch.no_grad():
        program = torch.export.export(adopted.eval(), (), batch, strict=False)
        assert "precast" not in str(program.graph)
        assert torch.equal(program.module()(**batch)["logits"], model.eval()(**batch).logits)


@pytest.mark.parametrize("name", ["qwen3", pytest.param("gemma3", marks=pytest.mark.long), "gpt2"])
def test_autocast_rounds_where_it_did(name: str, device: str) -> None:
    model, adopted, batch = pair(name)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        one, other = (m.eval()(**batch, output_hidden_states=True).hidden_states for m in (model, adopted))
    assert [h.dtype for h in one] == [h.dtype for h in other]
    for before, after in zip(one, other, strict=True):
        torch.testing.assert_close(after, before, rtol=2e-2, atol=2e-2)


def test_sequence_parallel_parameters_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from precast._adopt import recognise

    monkeypatch.setattr(recognise, "is_sharded", lambda module, recurse=False: not recurse)
    report = precast.adopt(torch.nn.Sequential(torch.nn.LayerNorm(8)))
    (group,) = report.left
    assert group.note == "its parameters are DTensors of no FSDP unit (tensor or sequence parallelism)"
