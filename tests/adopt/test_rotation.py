"""The rotary embedding of attentions: the bits of the own forward, the calls that run it, and what is left alone."""

from __future__ import annotations

import copy
import functools
import pickle
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import command, flow, instances, rotating, rotation, samples, source  # noqa: E402
from precast._adopt.run import adopt_by  # noqa: E402
from precast._adopt.small import small  # noqa: E402
from precast._adopt.source import Unreadable  # noqa: E402
from tests.adopt import zoo  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402
from tests.adopt.zoo import written  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]


def attentions(model: Any) -> list[Any]:
    return [one for one, name, bound in instances.patched(model) if bound.func is rotating.attention]


def reasons(model: Any) -> set[str]:
    return {group.note for group in adopt_by((), model).left if group.kind == "rotary"}


def step(model: Any, **more: Any) -> tuple[Any, list[Any]]:
    """Logits, and the gradients of their own loss."""
    model.zero_grad()
    result = model.train()(input_ids=zoo.ids(), labels=zoo.ids(), **more)
    result.loss.backward()
    return result.logits.detach(), [parameter.grad for parameter in model.parameters()]


def adopted(name: str, dtype: Any) -> tuple[Any, Any]:
    """A model, and one of which nothing but the attentions is adopted."""
    model = zoo.make(name, dtype)
    other = copy.deepcopy(model)
    assert adopt_by((), other).ok
    for module, attribute, bound in instances.patched(other):
        if bound.func is not rotating.attention:
            instances.take(module, attribute)
    assert len(attentions(other)) == 2
    return model, other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_bits_and_the_gradients_of_llama(dtype: Any) -> None:
    (logits, gradients), (ours, other) = map(step, adopted("llama", dtype))
    assert torch.equal(ours, logits)
    assert all(map(torch.equal, other, gradients))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe", "gemma3"])
def test_norms_and_rotation_round_as_the_own_ones(name: str, dtype: Any) -> None:
    """In bfloat16 the logits have the same bits; in float32 what is left is the order of the sums of the norms."""
    (logits, gradients), (ours, other) = map(step, adopted(name, dtype))
    if dtype == torch.bfloat16:
        assert torch.equal(ours, logits)
    torch.testing.assert_close(ours, logits, rtol=0, atol=2e-6)
    bound = 2e-6 if dtype == torch.float32 else 0.02
    for one, right in zip(other, gradients, strict=True):
        assert float((one - right).abs().max()) <= bound * float(right.abs().max())


def test_undo_a_copy_a_pickle_and_the_kept_report() -> None:
    model, other = adopted("qwen3", torch.float32)
    right, _ = step(other)
    for same in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert attentions(same) and attentions(same)[0] is not attentions(other)[0]
        assert torch.equal(step(same)[0], right)
    report = precast.adopt(zoo.make("qwen3"))
    assert command.drift(report) == ()
    precast.undo_adopt(other)
    assert not attentions(other)
    assert torch.equal(step(other)[0], step(model)[0])


def test_compiled_the_own_forward_is_traced() -> None:
    model, other = adopted("gemma3", torch.float32)
    compiled = torch.compile(other, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(input_ids=zoo.ids()).logits, model(input_ids=zoo.ids()).logits)


def served(monkeypatch: pytest.MonkeyPatch, model: Any, **more: Any) -> tuple[int, Any]:
    """How many attentions took the kernel in a step, and its logits."""
    calls = []
    kernel = rotating.rms_norm_rotary_embedding

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(1)
        return kernel(*given, **named)

    monkeypatch.setattr(rotating, "rms_norm_rotary_embedding", counted)
    logits, _ = step(model, **more)
    monkeypatch.setattr(rotating, "rms_norm_rotary_embedding", kernel)
    return len(calls), logits


def test_the_changed_forward_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(rotating, "with_attribute", lambda *given: made.append(given) or source.with_attribute(*given))
    rotating._rotating.cache_clear()
    _, other = adopted("qwen3", torch.float32)
    for same in (other, other, copy.deepcopy(other)):
        step(same)
    assert len(made) == 1


def test_a_call_sees_what_has_changed_since_the_adoption(monkeypatch: pytest.MonkeyPatch) -> None:
    """The globals of the own forward, the children, and the module that an attention function writes to."""
    from transformers.models.qwen3 import modeling_qwen3

    model, other = adopted("qwen3", torch.float32)
    attention = attentions(other)[0]
    attention.o_proj = torch.nn.Linear(64, 5)
    other.set_attn_implementation("eager")
    eager = modeling_qwen3.eager_attention_forward

    def marking(module: Any, *given: Any, **named: Any) -> Any:
        module.called = True
        return eager(module, *given, **named)

    monkeypatch.setattr(modeling_qwen3, "eager_attention_forward", marking)
    x = torch.randn(1, 3, 64)
    tables = model.model.rotary_emb(x, torch.arange(3)[None])
    assert attention(x, tables, None)[0].shape == (1, 3, 5)
    assert attention.called


def test_errors_are_those_of_the_own_forward() -> None:
    model, other = adopted("qwen3", torch.float32)
    for wrong in ({}, {"hidden_states": torch.randn(1, 3, 64), "position_embeddings": 1, "attention_mask": None}):
        found = []
        for attention in (model.model.layers[0].self_attn, attentions(other)[0]):
            with pytest.raises(TypeError) as error:
                attention(**wrong)
            found.append((str(error.value), error.traceback[-1].path, error.traceback[-1].lineno))
        assert found[0] == found[1]


def test_calls_that_are_not_proved_run_the_own_forward(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    model, other = adopted("qwen3", torch.float32)
    right, _ = step(model)
    assert served(monkeypatch, other)[0] == 2
    positions = torch.stack([torch.arange(12), torch.arange(3, 15)])
    count, logits = served(monkeypatch, other, position_ids=positions)
    assert count == 2  # a row of the tables for each token of each sequence
    torch.testing.assert_close(logits, step(model, position_ids=positions)[0], rtol=0, atol=2e-6)
    seen: list[Any] = []
    hook = attentions(other)[0].q_norm.register_forward_hook(lambda *given: seen.append(given[2]))
    assert served(monkeypatch, other)[0] == 1 and len(seen) == 1
    hook.remove()
    attentions(other)[1].k_norm.forward = lambda x: x
    assert served(monkeypatch, other)[0] == 1
    del attentions(other)[1].k_norm.forward
    with torch.autocast(device, torch.bfloat16):
        assert served(monkeypatch, other)[0] == 0
    tables = other.model.rotary_emb
    monkeypatch.setattr(type(tables), "forward", lambda *_: (torch.ones(1, 12, 16, requires_grad=True),) * 2)
    assert served(monkeypatch, other)[0] == 0
    monkeypatch.undo()
    precast.undo_adopt(other)
    assert torch.equal(step(other)[0], right)


def test_what_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.make("qwen3")
    for layer in model.model.layers:
        layer.self_attn.q_norm.register_forward_hook(lambda *_: None)
    assert reasons(model) == {"its norms have hooks, which would see no norm"}
    model = zoo.make("qwen3")
    for layer in model.model.layers:
        layer.self_attn.k_norm.forward = lambda x: x
    assert reasons(model) == {"the forward of its norms was replaced before"}
    model = zoo.make("qwen3")
    for layer in model.model.layers:
        layer.self_attn.k_norm.variance_epsilon = 1e-5
    assert reasons(model) == {"its norms have two values of eps"}
    for layer in model.model.layers:
        layer.self_attn.k_norm = torch.nn.Linear(16, 16)
    assert reasons(model) == set(), "a norm of another kind stays, and what rotates after it is replaced"
    model = zoo.make("llama")
    for layer in model.model.layers:
        layer.self_attn.forward = functools.partial(type(layer.self_attn).forward, layer.self_attn)
    assert {note.partition(",")[0] for note in reasons(model)} == {"its forward was replaced before"}


def test_a_decorator_that_hides_the_forward_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.make("llama")
    attention = type(model.model.layers[0].self_attn)
    kept = {"forward": attention.forward}

    @functools.wraps(attention.forward)
    def hiding(*given: Any, **named: Any) -> Any:
        return kept["forward"](*given, **named)

    monkeypatch.setattr(attention, "forward", hiding)
    assert reasons(model) == {"a decorator of forward does not hold the function that it wraps in its closure"}


def test_another_function_that_rotates_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As other patches replace it for all: the forward means another function then."""
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", another_when_long)
    assert reasons(zoo.make("llama")) == {"another_when_long does more than plain arithmetic: if q.shape[2] > 4096:"}
    monkeypatch.undo()
    monkeypatch.setattr(modeling_llama, "rotate_half", turned_back)
    (reason,) = reasons(zoo.make("llama"))
    assert reason.startswith("it rounds in another order in bfloat16: ")


def another_when_long(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """What a probe of short inputs cannot tell from the own function."""
    if q.shape[2] > 4096:
        cos = cos * 2
    return q * cos, k * cos


def turned_back(x: Any) -> Any:
    return torch.cat([x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)


BEFORE = "k = self.k_proj(x).transpose(1, 2)\nq = self.q_proj(x).transpose(1, 2)"
NORMS = "q = self.q_norm(self.q_proj(x).view(-1)).transpose(1, 2)\nk = self.k_norm(k)"
CALL = "q, k = apply_rotary_pos_emb(q, k, cos, sin)\nreturn q, k"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f"{BEFORE}\n{CALL}", ("q_proj", "k_proj")),  # no norms, as the caller sees by their classes
        (f"{BEFORE}\n{NORMS}\n{CALL}", ("q_norm", "k_norm")),
        (f"{BEFORE}\n{NORMS}\nseen = q.sum()\n{CALL}", ()),  # another reads the result of a norm
        (f"{BEFORE}\nif self.normed:\n    q = self.q_norm(q)\n    k = self.k_norm(k)\n{CALL}", ()),
        (f"{BEFORE}\n{NORMS}\nv = self.k_norm(x)\n{CALL}", ()),
        (f"{BEFORE}\n{NORMS}\n{CALL.replace('q, k = ', 'r, s = ')}", ()),  # normalised heads are read unrotated too
        (
            f"{BEFORE}\n{NORMS}\n{CALL.replace('q, k', 'r, s').replace('pos_emb(r, s', 'pos_emb(q, k')}",
            ("q_norm", "k_norm"),
        ),
        (f"{BEFORE}\n{NORMS.replace('(1, 2)', '(0, 1)')}\n{CALL}", ()),
        (f"{BEFORE}\n{NORMS}\nif self.rotates:\n    {CALL.splitlines()[0]}\nreturn q, k", ()),  # else no norms
        (f"{BEFORE}\n{CALL}\nq, k = apply_rotary_pos_emb(q, k, cos, sin)", ()),
    ],
)
def test_what_an_attention_gives_to_the_rotation_is_read_from_its_source(body: str, found: Any, tmp_path: Path) -> None:
    forward = written(tmp_path, "forward(self, x, cos, sin)", body)
    assert flow.rotated(forward, "apply_rotary_pos_emb") == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (CALL, (2, 1)),
        (f"{CALL}\nq, k = apply_rotary_pos_emb(q, k, cos, sin)", (2, 1)),
        (CALL.replace("sin)", "sin, unsqueeze_dim=2)"), (2, 2)),
        ("return apply_rotary_pos_emb(q, cos, sin, unsqueeze_dim=2)", (1, 2)),
        (f"{CALL}\nq = apply_rotary_pos_emb(q, cos, sin)", None),
        (CALL.replace("sin)", "sin, unsqueeze_dim=x)"), None),
        (CALL.replace("sin)", "sin, positions)"), None),
        (CALL.replace("q, k, cos", "*heads, cos"), None),
        ("q, k = self.turn(apply_rotary_pos_emb)(q, k, cos, sin)", None),
    ],
)
def test_how_an_attention_calls_the_rotation_is_read_from_its_source(body: str, found: Any, tmp_path: Path) -> None:
    forward = written(tmp_path, "forward(self, x, cos, sin)", body)
    if found is None:
        with pytest.raises(Unreadable, match="does not call apply_rotary_pos_emb in one way"):
            flow.called(forward, "apply_rotary_pos_emb")
    else:
        assert flow.called(forward, "apply_rotary_pos_emb") == found


@pytest.mark.parametrize(
    "body",
    [
        "while x.shape[0]:\n    x = x * 2",
        "return x * 2 if x.shape[0] > 9 else x",
        "return x[..., :64]",
        "return x[..., 64:]",
        "return x[:9]",
        "return x / 2",
        "return x.sort()",
        "return torch.sin(x)",
        "return [one * 2 for one in x]",
        "return abs(x)",
        "x[..., ::2] = 0\nreturn x",
        "x += 1\nreturn x",
        "return (lambda y: y)(x)",
    ],
)
def test_what_is_no_formula_for_all_shapes_is_not_known(body: str, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"does more than plain arithmetic|is a NoneType, not a function"):
        flow.straight(written(tmp_path, "turn(x)", body), "turn")


# Forms of the rotation: the model, and how its kernel is called.
FORMS = {
    "Gemma4ForCausalLM": (4, "each"),  # one tensor at a time, after the norms
    "GlmForCausalLM": (2, "each"),  # neighbours, and a part of the heads
    "GptOssForCausalLM": (2, "each"),  # tables with a column for each pair
    "Olmo2ForCausalLM": (2, "once"),  # tables of float32
    "Phi3ForCausalLM": (2, "each"),
    "Qwen3_5ForCausalLM": (1, "each"),  # a part of the heads, after the norms
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_the_rotation_has_the_own_bits(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, name):
        return
    torch.manual_seed(0)
    model = small(getattr(transformers, name)).to(dtype).eval()
    other = copy.deepcopy(model)
    assert adopt_by((), other).compared
    batch = samples.sample(model)
    calls, kernel = [], rotating.rms_norm_rotary_embedding
    counted = lambda *given, **named: calls.append(named["rounding"]) or kernel(*given, **named)  # noqa: E731
    monkeypatch.setattr(rotating, "rms_norm_rotary_embedding", counted)
    assert torch.equal(other(**batch).logits, model(**batch).logits)
    count, rounding = FORMS[name]
    assert calls == [rounding] * count


def rounded_once(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """In float32, where transformers rounds each product."""

    def turned(x: Any) -> Any:
        first, second = x.float().chunk(2, -1)
        return (x * cos[:, None].float() + torch.cat([-second, first], -1) * sin[:, None].float()).to(x.dtype)

    return turned(q), turned(k)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_probe_finds_a_rotation_that_rounds_once(name: str, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    attention = zoo.make(name).model.layers[0].self_attn
    _, norms = rotation.known(attention)
    assert not isinstance(norms, str)
    form, note = rotation.prove(attention, norms, device)
    assert form is not None and "decisive elements have the same bits" in note
    assert (form.casting, form.narrow, form.wide) == ("gemma" if norms else "none", "each", "")
    monkeypatch.setitem(rotation.inspect.unwrap(type(attention).forward).__globals__, instances.ROTATE, rounded_once)
    form, _ = rotation.prove(attention, norms, device)
    assert form is not None and (form.narrow, form.wide) == ("once", "once")
