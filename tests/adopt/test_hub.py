"""The mapping for ``kernelize`` of the ``kernels`` package: exact for the model at hand, without hub and network."""

from __future__ import annotations

import copy
import socket
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import samples  # noqa: E402
from tests.adopt import zoo  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]


@pytest.fixture(autouse=True)
def _layer_names() -> Iterator[None]:
    """The names that transformers gives its classes if the installed ``kernels`` is one that it accepts."""
    from kernels import replace_kernel_forward_from_hub
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    named = [cls for cls in (LlamaRMSNorm, GptOssRMSNorm) if not hasattr(cls, "kernel_layer_name")]
    for cls in named:
        replace_kernel_forward_from_hub(cls, "RMSNorm")
    yield
    for cls in named:
        del cls.kernel_layer_name, cls.kernel_condition


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise OSError("this test has no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def kernelized(model: Any, mapping: Any) -> Any:
    from kernels import Mode, kernelize, use_kernel_mapping

    with use_kernel_mapping(mapping, inherit_mapping=False):
        return kernelize(copy.deepcopy(model), mode=Mode.TRAINING, device="cpu")


@pytest.mark.parametrize(("name", "casting"), [("llama", "llama"), ("gpt_oss", "none")])
def test_one_layer_name_rounds_as_the_model_does(name: str, casting: str) -> None:
    model = zoo.make(name, torch.bfloat16).eval()
    mapping = precast.kernel_mapping(model)
    assert mapping["RMSNorm"]["cpu"].given[0] == casting
    faster = kernelized(model, mapping)
    x = torch.randn(8, 64).bfloat16()
    assert faster.model.norm.forward.__func__ is not type(model.model.norm).forward
    torch.testing.assert_close(faster.model.norm(x), model.model.norm(x), rtol=0, atol=2**-7)
    batch = samples.sample(model)
    assert batch is not None
    torch.testing.assert_close(faster(**batch).logits, model(**batch).logits, rtol=2e-2, atol=2e-2)


def test_a_name_that_means_two_things_is_left_out() -> None:
    both = torch.nn.ModuleList([zoo.make("llama").model.norm, zoo.make("gpt_oss").model.norm])
    assert precast.kernel_mapping(both) == {}
    with pytest.raises(TypeError, match="kernel_mapping: model is a str"):
        precast.kernel_mapping("llama")  # type: ignore[arg-type]


def test_what_kernelize_replaced_is_left_alone() -> None:
    model = zoo.make("llama")
    faster = kernelized(model, precast.kernel_mapping(model))
    left = {group.kind: group.note for group in precast.adopt(faster).left}
    assert left["rms_norm"] == "its forward was replaced before, by precast._adopt.hub"


def test_functions_that_layers_call() -> None:
    """By the names of the packages, with the signatures that kernels compares; what they do not know is left out."""
    from kernels import Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping, use_kernelized_func

    @use_kernel_forward_from_hub("causal_conv1d_fn")
    def convolve(hidden_states: Any, weight: Any, bias: Any = None, activation: Any = None, **kwargs: Any) -> Any:
        raise AssertionError("the function in plain torch")

    @use_kernelized_func(convolve)
    class Layer(torch.nn.Module):
        def forward(self, x: Any, weight: Any) -> Any:
            return convolve(x, weight, activation="silu", seq_idx=None, position_ids=None)

    layer, x, weight = Layer(), torch.randn(2, 4, 9), torch.randn(4, 3)
    assert precast.kernel_mapping(layer) == {}
    mapping: Any = precast.kernel_mapping(layer, functions=True)
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(layer, mode=Mode.TRAINING, device="cpu")
    assert torch.equal(layer(x, weight), precast.ops.causal_conv1d(x, weight, activation="silu"))


def test_functions_of_fla() -> None:
    from kernels import Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping, use_kernelized_func

    @use_kernel_forward_from_hub("chunk_gated_delta_rule")
    def rule(query: Any, key: Any, value: Any, g: Any, beta: Any, chunk_size: int = 64, **kwargs: Any) -> Any:
        raise AssertionError("the function in plain torch")

    @use_kernelized_func(rule)
    class Layer(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
            return rule(q, k, v, g=g, beta=beta, output_final_state=True, use_qk_l2norm_in_kernel=True)

    layer, (q, k, v) = Layer(), torch.randn(3, 1, 9, 2, 16)
    g, beta = -torch.rand(1, 9, 2), torch.rand(1, 9, 2)
    mapping: Any = precast.kernel_mapping(layer, functions=True)
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(layer, mode=Mode.TRAINING, device="cpu")
    out, state = layer(q, k, v, g, beta)
    right, last = precast.ops.gated_delta_rule(q, k, v, g, beta, l2_norm=True)
    assert torch.equal(out, right) and torch.equal(state, last)
