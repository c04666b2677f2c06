"""torch.fx.symbolic_trace records each public function and module, and what it records computes the same."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import nn, ops  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

# torch.fx writes no function whose keywords without a default follow an argument with one.
TRACED = [name for name in ops.__all__ if name != "adam_"]


@pytest.mark.parametrize("name", TRACED)
def test_every_public_function_is_recorded(name: str) -> None:
    graph = torch.fx.symbolic_trace(getattr(ops, name)).graph
    assert [node for node in graph.nodes if node.op == "call_function"]


def test_a_step_over_lists_is_recorded() -> None:
    def step(params: Any, grads: Any, first: Any, second: Any) -> Any:
        numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.0}
        ops.adam_([params], [grads], [first], [second], **numbers, bias_correction1=0.1, bias_correction2=0.1)
        return params

    tensors, same = ([torch.ones(3) for _ in range(4)] for _ in range(2))
    assert torch.equal(torch.fx.symbolic_trace(step)(*tensors), step(*same))
    assert tensors[0][0] < 1 and all(map(torch.equal, tensors, same))


X = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
MODULES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "LayerNorm": (nn.LayerNorm(8), (X,)),
    "LayerNorm over two": (nn.LayerNorm((8, 8)), (X,)),
    "LayerNorm of bfloat16": (nn.LayerNorm(8), (X.bfloat16(),)),
    "LayerNorm without a weight": (nn.LayerNorm(8, elementwise_affine=False), (X,)),
    "RMSNorm": (nn.RMSNorm(8), (X,)),
    "RMSNorm over two": (nn.RMSNorm((8, 8)), (X,)),
    "RMSNorm without a weight": (nn.RMSNorm(8, elementwise_affine=False), (X,)),
    "softmax": (nn.FusedScaleMaskSoftmax(0.5), (X, X > 0)),
    "softmax without a mask": (nn.FusedScaleMaskSoftmax(0.5), (X, None)),
    "causal softmax": (nn.FusedScaleMaskSoftmax(0.5, causal=True), (X, X > 0)),
    "uniform softmax": (nn.FusedScaleMaskSoftmax(0.5, masked_value=-1e4, fully_masked="uniform"), (X, X > -9)),
    "FusedLeakyReLU": (nn.FusedLeakyReLU(4), (X,)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_alone_and_in_a_network_is_recorded(name: str) -> None:
    module, inputs = MODULES[name]
    traced = torch.fx.symbolic_trace(module)
    assert torch.equal(traced(*inputs), module(*inputs))
    network = torch.nn.Sequential(torch.nn.Identity(), module)
    graph = torch.fx.symbolic_trace(network)
    assert torch.equal(graph(inputs[0]), network(inputs[0]))
    assert not [node for node in graph.graph.nodes if node.op == "call_method"]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: ops.rms_norm(x, w, 1e-5, casting="gemma"),
        lambda x, w: ops.rms_norm(x),
        lambda x, w: ops.rms_norm(x, normalized_shape=(8, 8)),
        lambda x, w: ops.layer_norm(x, w, normalized_shape=8),
        lambda x, w: ops.layer_norm(x, None, w),
        lambda x, w: ops.fused_add_rms_norm(x, x + 1, w, casting="llama")[1],
        lambda x, w: ops.fused_add_rms_norm(x, x, None)[0],
        lambda x, w: ops.silu_and_mul(x) + ops.topk_softmax(x.flatten(0, 2), 2)[0].sum(),
    ],
)
def test_what_is_recorded_computes_the_same(call: Any) -> None:
    weight = torch.arange(8.0)
    assert torch.equal(torch.fx.symbolic_trace(call)(X, weight), call(X, weight))
