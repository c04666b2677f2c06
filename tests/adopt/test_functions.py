"""Layers that call convolutions and delta rules by name: what stands in, which calls it serves, and what refuses."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import command, functions, stand_ins  # noqa: E402
from precast._adopt.report import parse  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]

_SMALL = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
_SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_KIMI = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_token": 2, "kv_lora_rank": 16}
_KIMI |= {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "bos_token_id": 1, "eos_token_id": 2}
_KIMI |= {"num_key_value_heads": 4}
_LINEAR = {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "kda_layers": [1], "full_attn_layers": [2]}
_MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": (
        "Qwen3Next",
        {**_SMALL, **_DELTA, "layer_types": ["linear_attention", "full_attention"]},
    ),
    "kimi_linear": ("KimiLinear", {**_SMALL, **_KIMI, "linear_attn_config": _LINEAR}),
    "nemotron_h": ("NemotronH", {**_SMALL, **_MAMBA, "layers_block_type": ["mamba", "attention"]}),
    "lfm2": ("Lfm2", {**_SMALL, "layer_types": ["conv", "full_attention"]}),
}
DELTA = ("causal_conv1d_update", "causal_conv1d_fn", "torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule")
KIMI = (*DELTA[:2], "recurrent_kimi_delta_attention", "chunk_kimi_delta_attention")
PROVED = {"qwen3_next": DELTA, "kimi_linear": KIMI, "nemotron_h": DELTA[:2], "lfm2": DELTA[:2]}


def made(name: str, dtype: Any = torch.float32) -> Any:
    transformers: Any = pytest.importorskip("transformers")
    prefix, options = MODELS[name]
    if not hasattr(transformers, f"{prefix}ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no {prefix}")
    torch.manual_seed(0)
    return getattr(transformers, f"{prefix}ForCausalLM")(getattr(transformers, f"{prefix}Config")(**options)).to(dtype)


def layer_of(model: Any) -> Any:
    return next(module for module in model.modules() if functions.called(type(module)))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were called."""
    called: list[str] = []

    def recorded(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            called.append(name)
            return op(*given, **named)

        return call

    for name in ("causal_conv1d", "causal_conv1d_update_", "gated_delta_rule"):
        monkeypatch.setattr(stand_ins, name, recorded(name, getattr(stand_ins, name)))
    return called


@pytest.mark.parametrize("name", MODELS)
def test_each_function_is_replaced_by_proof(name: str, kernels: list[str]) -> None:
    """Prefill, tokens from a cache, and training; the certificate says what was proved."""
    model = made(name).eval()
    ids = torch.randint(3, 97, (2, 70))
    options: Any = {"max_new_tokens": 4, "do_sample": False}
    with torch.no_grad():
        right, said = model(ids).logits, model.generate(ids, **options)
    report = precast.adopt(model)
    (group,) = (one for one in report.replaced if one.kind == "functions")
    assert report.ok and all(f"{one}: " in group.note for one in PROVED[name]), group.note
    assert ("mamba2_selective_state_update stays" in group.note) == (name == "nemotron_h")
    assert command.drift(parse(report.json())) == (), "the sources are found again as they were read"
    kernels.clear()
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, right, rtol=1e-5, atol=1e-5)
        assert torch.equal(model.generate(ids, **options), said)
    delta = {"gated_delta_rule"} if len(PROVED[name]) == 4 else set()
    assert {*kernels} == {"causal_conv1d", "causal_conv1d_update_"} | delta
    kernels.clear()
    model(ids, labels=ids).loss.backward()
    assert {*kernels} == {"causal_conv1d"} | delta
    assert precast.undo_adopt(model)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_round_as_they_do_untouched(dtype: Any) -> None:
    """A layer alone: what differs is only where the order of a sum decides."""
    layer: Any = layer_of(made("qwen3_next", dtype)).eval()
    x = torch.randn(2, 70, 64).to(dtype)
    right = layer(x)
    faster = copy.deepcopy(layer)
    precast.adopt(faster)
    off = (faster(x) != right).double().mean()
    assert off < 0.02, off


def test_calls_that_no_proof_covers(kernels: list[str]) -> None:
    layer: Any = layer_of(made("lfm2")).eval()
    precast.adopt(layer)
    x = torch.randn(2, 9, 64)
    kernels.clear()
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
    layer.double()(x.double())
    layer.float()
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        layer(x, seq_idx=torch.zeros(2, 9, dtype=torch.int32))
    assert kernels == []
    copied = pickle.loads(pickle.dumps(layer))
    assert torch.equal(copied(x), layer(x)) and kernels == ["causal_conv1d"] * 2


def test_what_is_not_plain_torch_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that calls a package, one that another patched, and one that does something else."""
    layer: Any = layer_of(made("lfm2"))
    module: Any = sys.modules[type(layer).__module__]
    own = module.causal_conv1d_fn

    def other(*given: Any, **named: Any) -> Any:
        return 2 * own(*given, **named)

    monkeypatch.setattr(module, "causal_conv1d_fn", other)
    assert [one.name for one in functions.called(type(layer))] == ["causal_conv1d_update"]
    cells = dict(zip(own.__code__.co_freevars, own.__closure__ or (), strict=True))
    monkeypatch.setattr(module, "causal_conv1d_fn", own)
    monkeypatch.setattr(cells["implementation"], "cell_contents", other)
    assert [one.name for one in functions.called(type(layer))] == ["causal_conv1d_update"]


def test_a_function_that_rounds_once_gets_the_kernel_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    layer: Any = layer_of(made("lfm2"))

    def once(x: Any, weight: Any, bias: Any = None, activation: Any = None, **_: Any) -> Any:
        wide = torch.nn.functional.pad(x, (weight.shape[1] - 1, 0)).double().unfold(-1, weight.shape[1], 1)
        y = (wide * weight.double()[:, None]).sum(-1) + bias.double()[:, None]
        return (y if activation is None else torch.nn.functional.silu(y)).to(x.dtype)

    named = (functions.Called("causal_conv1d_fn", "causal_conv1d_fn"),)
    monkeypatch.setitem(sys.modules[type(layer).__module__].__dict__, "causal_conv1d_fn", once)
    proved, note = functions.prove(layer, named, "cpu")
    assert proved == (("causal_conv1d_fn", "causal_conv1d_fn, rounded once"),), note
