"""``precast.adopt(model, logits=False)``: the loss of a causal language model without its logits, or its own loss."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import command, flow, forwards, samples  # noqa: E402
from precast._adopt.small import small  # noqa: E402
from precast._adopt.source import Unreadable  # noqa: E402
from precast.errors import KernelError  # noqa: E402
from tests.adopt import zoo  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402
from tests.adopt.zoo import written  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]


def pair(dtype: Any = torch.float32, change: Callable[[Any], Any] = lambda model: model) -> tuple[Any, Any, Any]:
    """A model, an adopted copy without logits, and a batch in which some labels do not count."""
    model = change(zoo.make("llama", dtype))
    adopted = copy.deepcopy(model)
    batch = dict(samples.sample(zoo.make("llama")) or {})
    report = precast.adopt(adopted, batch, logits=False)
    assert report.ok, report
    assert sum(len(group.modules) for group in report.replaced if group.kind == "logits") == 2, report
    assert {one.output for one in report.compared} >= {"loss", "loss, parameters hidden"}
    batch["labels"] = batch["labels"].clone()
    batch["labels"][0, :4] = -100
    return model, adopted, batch


def with_gradients(model: Any, batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    model.zero_grad()
    result = model(**batch)
    result.loss.sum().backward()
    return result, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_alike(untouched: Any, adopted: Any, batch: dict[str, Any], rtol: float = 1e-3) -> Any:
    """Both give the same loss and gradients; what the adopted one returned."""
    (result, expected), (found, gradients) = (with_gradients(model, batch) for model in (untouched, adopted))
    torch.testing.assert_close(found.loss, result.loss, rtol=1e-5, atol=1e-6)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=rtol, atol=rtol * float(gradient.abs().max()))
    return found


@pytest.mark.parametrize(
    ("options", "logits"),
    [
        ({}, False),
        ({"num_items_in_batch": 7}, False),
        ({"num_items_in_batch": torch.tensor(7)}, False),
        ({"num_items_in_batch": torch.tensor([7])}, False),  # keeps its dimension: the own loss
        ({"ignore_index": 3, "labels": torch.arange(24).view(2, 12)}, False),
        ({"shift_labels": torch.arange(24).view(2, 12)}, False),
        ({"label_smoothing": 0.1}, False),  # the own loss reads no such keyword
        ({"logits_to_keep": 12}, True),
        ({"output_hidden_states": True}, False),
    ],
    ids=["plain", "items", "tensor", "vector", "ignored", "shifted", "smoothing", "kept", "states"],
)
def test_every_keyword_is_that_of_the_own_loss(options: dict[str, Any], logits: bool) -> None:
    untouched, adopted, batch = pair()
    found = assert_alike(untouched, adopted, {**batch, **options})
    assert (found.logits is not None) == logits
    assert (found.hidden_states is not None) == ("output_hidden_states" in options)


def test_narrow_weights_and_autocast(device: str) -> None:
    untouched, adopted, batch = pair(torch.bfloat16)
    assert_alike(untouched, adopted, batch, rtol=4e-2)
    untouched, adopted, batch = pair()
    with torch.autocast(device, dtype=torch.bfloat16):
        a, b = (model(**batch).loss for model in (untouched, adopted))
    assert float(b.detach()) == pytest.approx(float(a.detach()), rel=1e-2)


def test_calls_without_labels_and_tuples_are_the_models_own() -> None:
    untouched, adopted, batch = pair()
    rest = {name: value for name, value in batch.items() if name != "labels"}
    torch.testing.assert_close(adopted(**rest).logits, untouched(**rest).logits)
    _, logits, *_ = adopted(**batch, return_dict=False)
    assert logits.shape == (2, 12, 97)
    given = {**rest, "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(adopted.eval().generate(**given), untouched.eval().generate(**given))


def test_the_loss_has_no_logits(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    _, adopted, batch = pair()
    rows: list[int] = []
    own = forwards.linear_cross_entropy
    monkeypatch.setattr(forwards, "linear_cross_entropy", lambda x, *a, **o: rows.append(len(x)) or own(x, *a, **o))
    monkeypatch.setattr(forwards, "cross_entropy", lambda *_, **__: pytest.fail("the loss had logits"))
    monkeypatch.setattr(type(adopted.lm_head), "forward", lambda *_: pytest.fail("the head made logits"))
    with pytest.raises(pytest.fail.Exception):  # the other linear layers have this class
        adopted(**batch)
    forwards.head_with_loss(adopted.lm_head, device, torch.randn(2, 6, 64), target=torch.zeros(12).long())
    assert rows == [12]


def tied(model: Any) -> Any:
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


def adapted(model: Any) -> Any:
    import peft

    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))


@pytest.mark.parametrize("change", [tied, adapted])
def test_tied_weights_and_adapters_elsewhere_are_served(change: Any) -> None:
    untouched, adopted, batch = pair(change=change)
    assert assert_alike(untouched, adopted, batch).logits is None


def test_undo_copies_and_pickles() -> None:
    untouched, adopted, batch = pair()
    for again in (copy.deepcopy(adopted), pickle.loads(pickle.dumps(adopted))):
        assert again.forward.args[0] is again and again.lm_head.forward.args[0] is again.lm_head
        assert assert_alike(untouched, again, batch).logits is None
    precast.undo_adopt(adopted)
    assert "forward" not in vars(adopted) and "forward" not in vars(adopted.lm_head)
    assert adopted(**batch).logits is not None


def test_the_certificate_holds_until_the_source_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.make("llama")
    report = precast.adopt(model, logits=False)
    assert {one.output for one in report.compared} >= {"loss", "loss, parameters hidden", "logits, from a cache"}
    assert "logits of calls with labels: there are none" in report.not_compared
    assert command.drift(report) == ()
    monkeypatch.setattr(type(model), "forward", lambda self, input_ids: self.lm_head(input_ids))
    (found,) = command.drift(report)
    assert found.startswith("transformers.models.llama.modeling_llama.LlamaForCausalLM has another source: ")


def lora_on_the_head(model: Any) -> Any:
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["lm_head"]))


def saved_head(model: Any) -> Any:
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]))


def hooked(model: Any) -> Any:
    model.lm_head.register_forward_hook(lambda *_: None)
    return model


def replaced(model: Any) -> Any:
    model.lm_head.forward = model.lm_head.forward
    return model


def partitioned(model: Any) -> Any:
    model.lm_head.weight.ds_id = 0
    return model


def other_parameter(model: Any) -> Any:
    model.lm_head.weight = type("DTensor", (torch.nn.Parameter,), {})(model.lm_head.weight.detach())
    return model


def wider(model: Any) -> Any:
    model.config.vocab_size = 96
    return model


def with_another_loss(model: Any) -> Any:
    model.loss_function = lambda logits, labels, **_: logits.sum()
    return model


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lora_on_the_head, "its lm_head is a peft.tuners.lora.layer.Linear; needed a torch.nn.Linear, without adapter"),
        (saved_head, "its lm_head is a peft.utils.other.ModulesToSaveWrapper; needed a torch.nn.Linear, without"),
        (hooked, "its lm_head has hooks, which would see no logits"),
        (replaced, "the forward of its lm_head was replaced before"),
        (partitioned, "its lm_head is partitioned by ZeRO-3 of DeepSpeed"),
        (other_parameter, "the weight of its lm_head is a DTensor (FSDP2 or tensor parallelism)"),
        (wider, "its lm_head has 97 classes, and vocab_size is 96"),
        (with_another_loss, "its loss stays"),
    ],
)
def test_what_is_not_safe_keeps_its_logits(change: Any, reason: str) -> None:
    from precast._adopt.recognise import examine
    from precast._adopt.rules import RULES

    (found,) = (one for one in examine(change(zoo.make("llama")), RULES, logits=False) if one.kind == "logits")
    assert isinstance(found.fate, str) and found.fate.startswith(reason)


def capped(model: Any) -> Any:
    model.config.final_logit_softcapping = 30.0
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: capped(zoo.make("gemma3")), "its logits are changed, as config.final_logit_softcapping is 30.0"),
        (lambda: hooked(zoo.make("llama")), "its lm_head has hooks, which would see no logits"),
        (lambda: zoo.make("vit"), "no causal language model of transformers"),
    ],
)
def test_logits_that_must_stay_are_an_error_and_nothing_is_changed(make: Callable[[], Any], reason: str) -> None:
    model = make()
    with pytest.raises(KernelError, match=re.escape(reason)):
        precast.adopt(model, logits=False)
    assert not any("forward" in vars(one) for one in model.modules())
    left = [group.note for group in precast.adopt(model, logits=False, dry_run=True).left if group.kind == "logits"]
    assert left == ([] if "no causal" in reason else [reason])


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe", "gemma3", "gpt_oss"])
def test_models_whose_forwards_differ_have_the_loss_and_gradients_of_their_logits(name: str) -> None:
    model = zoo.make(name)
    if hasattr(model.config, "output_router_logits"):
        model.config.output_router_logits = True  # whose loss the forward adds to that of the labels
    adopted = copy.deepcopy(model)
    assert precast.adopt(adopted, logits=False).ok
    assert precast.adopt(adopted, logits=False) is not None, "again: nothing is left to do"
    batch = dict(samples.sample(zoo.make(name)) or {})
    assert assert_alike(model, adopted, batch).logits is None
    if name == "gemma3":
        capped(adopted)
        assert adopted(**batch).logits is not None, "the option was set later"


@pytest.mark.parametrize("name", ["CohereForCausalLM", "GraniteForCausalLM"])
def test_logits_that_a_power_of_two_scales(name: str) -> None:
    """It does not round, so the rows before the head are scaled."""
    torch.manual_seed(0)
    model: Any = small(getattr(pytest.importorskip("transformers"), name)).bfloat16()
    set_scale(model, 0.25)
    adopted = copy.deepcopy(model)
    assert precast.adopt(adopted, logits=False).ok
    batch = dict(samples.sample(model) or {})
    assert assert_alike(model, adopted, batch, rtol=4e-2).logits is None
    set_scale(adopted, 0.3)
    assert adopted(**batch).logits is not None, "the scale was set later"
    for given, reason in ((adopted, "no power of two"), (model.half(), "float16 may underflow")):
        precast.undo_adopt(given)
        with pytest.raises(KernelError, match=reason):
            precast.adopt(given, logits=False)


def test_a_configuration_of_parts_says_how_many_classes_there_are() -> None:
    model: Any = small(pytest.importorskip("transformers").FuyuForCausalLM)
    assert not hasattr(model.config, "vocab_size")
    report = precast.adopt(model, logits=False)
    assert report.ok and "loss" in {one.output for one in report.compared}, report
    assert model(**dict(samples.sample(zoo.make("llama")) or {})).logits is None


def set_scale(model: Any, scale: float) -> None:
    if hasattr(model, "logit_scale"):
        model.logit_scale = scale
    else:
        model.config.logits_scaling = scale


def read(folder: Path, body: str) -> Any:
    return flow.logits_of(written(folder, "forward(self, ids, labels=None, **kw)", body))


LOSS = "loss = self.loss_function(logits, labels, self.config.vocab_size, **kw)\nreturn dict(loss=loss, logits=logits)"


def test_what_a_forward_does_with_its_logits_is_read_from_its_source(tmp_path: Path) -> None:
    made, option = "logits = self.lm_head(self.model(ids))", "if self.config.cap is not None:\n    logits = logits / 2"
    scale = "logits = logits * self.scale\nlogits = logits / self.config.scaling"
    assert read(tmp_path, f"{made}\n{LOSS}") == ((), ())
    assert read(tmp_path, f"{made}\n{option}\n{scale}\n{LOSS}") == (("cap",), ("scale", "config.scaling"))
    refused = (
        f"{made}\nlogits = logits.float()\n{LOSS}",
        f"{made}\nlogits = logits * self.scale()\n{LOSS}",
        f"{made}\nlogits = logits * self.head.scale\n{LOSS}",
        f"{made}\nlogits = self.scale / logits\n{LOSS}",
        f"{made}\n{option}\nelse:\n    logits = logits / 3\n{LOSS}",
        f"{made}\nif self.cap is not None:\n    logits = logits / 2\n{LOSS}",
        f"{made}\n{LOSS.replace('loss=loss', 'loss=loss + logits.mean()')}",
        f"{made}\n{LOSS.replace('(logits, ', '(logits[:, 1:], ')}",
        f"{made}\nother = self.lm_head(ids)\n{LOSS}",
        f"{made.replace('ids))', 'ids), ids)')}\n{LOSS}",
        f"if labels is None:\n    {made}\n{LOSS}",
        f"{made}\nreturn dict(logits=logits)",
    )
    for body in refused:
        with pytest.raises(Unreadable, match="its forward "):
            read(tmp_path, body)


def test_gradients_by_torch_func_have_logits() -> None:
    """The loss without logits is an ``autograd.Function`` that no transform takes."""
    untouched, adopted, batch = pair()

    def gradient(model: Any) -> Any:
        weights = {name: p.detach() for name, p in model.named_parameters()}
        return torch.func.grad(lambda given: torch.func.functional_call(model, given, (), batch).loss)(weights)

    torch.testing.assert_close(gradient(adopted), gradient(untouched), rtol=1e-3, atol=1e-5)
