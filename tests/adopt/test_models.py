"""Models of transformers, timm and diffusers, adopted: what is replaced, and that training and generation stay."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import command, samples  # noqa: E402
from tests.adopt import zoo  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, pytest.mark.models]
# transformers and diffusers call what torch and they themselves have deprecated.
QUIET = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
pytestmark += QUIET

# Modules replaced and left, by kind.
FATES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "llama": ({"rms_norm": 5, "gated_mlp": 2, "loss": 1, "rotary": 2}, {}),
    "qwen3": ({"rms_norm": 9, "gated_mlp": 2, "loss": 1, "rotary": 2}, {}),
    "qwen3_moe": ({"rms_norm": 9, "experts": 2, "loss": 1, "rotary": 2}, {}),
    "gemma3": ({"rms_norm": 13, "gated_mlp": 2, "loss": 1, "rotary": 2}, {}),
    "gpt_oss": ({"rms_norm": 5, "loss": 1, "rotary": 2}, {"gated_mlp": 2, "experts": 2}),
    "gpt2": ({"layer_norm": 5, "loss": 1}, {"gated_mlp": 2}),
    "bert": ({"layer_norm": 6}, {}),
    "vit": ({"layer_norm": 5}, {"gated_mlp": 2}),
    "whisper": ({"layer_norm": 12}, {}),
    "mamba2": ({"rms_norm": 3, "gated_norm": 2, "loss": 1, "functions": 2}, {}),
    "timm_vit": ({"layer_norm": 5}, {}),
    "timm_convnext": ({"layer_norm": 9}, {}),
    "unet": ({"layer_norm": 12, "gated_mlp": 4}, {}),
}
CASTINGS = {"llama": "llama", "qwen3": "llama", "gemma3": "gemma", "gpt_oss": "none", "mamba2": "llama"}
STEPS = 20


def quick(*names: str, of: Iterable[str] = zoo.MODELS) -> list[Any]:
    """These models, and the others as long tests."""
    marks = {name: [pytest.mark.timm] * name.startswith("timm_") for name in (*names, *of)}
    return [pytest.param(name, marks=[*own, *[pytest.mark.long] * (name not in names)]) for name, own in marks.items()]


def losses(model: Any) -> list[float]:
    """Of some steps of plain descent on one batch, with the dropout of one seed."""
    model.train()
    batch, found = samples.sample(model), []
    assert batch is not None
    for step in range(STEPS):
        torch.manual_seed(step)
        result = model(**batch)
        if isinstance(result, torch.Tensor):
            loss = result.square().mean() / 10
        else:
            loss = result["loss"] if "loss" in result else next(iter(result.values())).square().mean() / 10
        parameters = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=0.01)
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("name", quick(*zoo.MODELS))
def test_a_model_is_adopted(name: str) -> None:
    model = zoo.make(name)
    report = precast.adopt(model)
    assert report.ok, report
    counts = [Counter() for _ in range(2)]
    for count, groups in zip(counts, (report.replaced, report.left), strict=True):
        for group in groups:
            count[group.kind] += len(group.modules)
    assert tuple(map(dict, counts)) == FATES[name], report
    assert len(str(report).splitlines()) < 26
    if name in CASTINGS:
        norms = [group.note for group in report.replaced if group.kind == "rms_norm"]
        assert all(note.startswith(f'rms_norm, casting="{CASTINGS[name]}"') for note in norms)


@pytest.mark.parametrize("name", quick("llama", "gemma3", "qwen3_moe", "unet", "timm_vit"))
def test_training_gives_the_same_losses(name: str) -> None:
    model = zoo.make(name)
    untouched = copy.deepcopy(model)
    assert precast.adopt(model).ok
    # Convolutions of a GPU round their inputs to ten bits by default, which makes large differences of small ones.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False, deterministic=True):
        assert losses(model) == pytest.approx(losses(untouched), rel=1e-4)


@pytest.mark.parametrize("name", quick("llama", "gpt_oss", of=("qwen3", "qwen3_moe", "gemma3", "gpt2", "mamba2")))
def test_generation_with_a_cache_gives_the_same_tokens(name: str) -> None:
    model = zoo.make(name)
    batch = samples.sample(model)
    assert batch is not None
    given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    options = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    before = model.eval().generate(**given, **options)
    assert precast.adopt(model).ok
    assert torch.equal(model.generate(**given, **options), before)


def test_the_gate_of_experts_is_theirs_again_after_undo() -> None:
    model = zoo.make("qwen3_moe")
    report = precast.adopt(model)
    (group,) = (one for one in report.replaced if one.kind == "experts")
    experts = [model.get_submodule(name) for name in group.modules]
    assert all("_apply_gate" in vars(one) for one in experts)
    assert command.drift(report) == ()
    copied = copy.deepcopy(experts[0])
    assert vars(copied)["_apply_gate"].args[0] is copied
    precast.undo_adopt(model)
    assert not any("_apply_gate" in vars(one) for one in experts)


def test_experts_with_a_gate_of_their_own_are_left() -> None:
    left = {group.kind: group.note for group in precast.adopt(zoo.make("gpt_oss")).left}
    assert left["experts"] == "no rule knows what its _apply_gate does"


@pytest.mark.parametrize("name", quick("llama", "gemma3", of=("gpt_oss", "bert")))
def test_a_bfloat16_model_is_adopted(name: str) -> None:
    report = precast.adopt(zoo.make(name, torch.bfloat16))
    assert report.ok, report
    assert {one.output for one in report.compared} >= {"loss", "logits", "loss, num_items_in_batch"}
