"""The modules we stand in for: their functions by their names give the numbers they gave, by kernels and by torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from precast import kernel_loader
from precast.compat import deepspeed
from precast.errors import KernelUnavailable
from precast.kernel_loader import (
    CPUAdamLoader,
    FlashAttentionForFloatAndCustomMaskLoader,
    FlashAttentionLoader,
    FusedOptimizerLoader,
    InferenceOpsLoader,
    KernelLoader,
    LayerNormLoader,
    ScaledMaskedSoftmaxLoader,
    ScaledUpperTriangleMaskedSoftmaxLoader,
)

pytestmark = [pytest.mark.torch, pytest.mark.compiler]
BOTH = pytest.mark.parametrize("kind", ["cpu", "torch"])
ELEVEN = (
    *("CPUAdamLoader", "LayerNormLoader", "MoeLoader", "FusedOptimizerLoader", "InferenceOpsLoader"),
    *("ScaledMaskedSoftmaxLoader", "ScaledUpperTriangleMaskedSoftmaxLoader", "FlashAttentionLoader"),
    *("FlashAttentionDaoLoader", "FlashAttentionWithCustomMaskLoader", "FlashAttentionForFloatAndCustomMaskLoader"),
)


def load(loader: type[KernelLoader], kind: str) -> Any:
    (name,) = [name for name in loader.names() if name.endswith(f"_{kind}")]
    loaded = loader().load(ext_name=name)
    assert (loaded.source.kind == "torch") == (kind == "torch")
    return loaded


def close(found: torch.Tensor, wanted: torch.Tensor, digits: float = 1e-5) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), rtol=digits, atol=digits)


def test_every_loader_loads_or_says_why_not() -> None:
    assert set(ELEVEN) <= set(kernel_loader.__all__)
    for name in ELEVEN:
        loader = getattr(kernel_loader, name)
        taken = [one.name for one in loader.candidates() if one.state == "ready"]
        if taken:
            assert loader().load() is loader().load(ext_name=taken[0]), name
            assert loader().load().source.path
        else:
            with pytest.raises(KernelUnavailable, match=f"none of the extensions of {name}"):
                loader().load()


@BOTH
@pytest.mark.parametrize("shape", [(5,), (3, 4)])
def test_layer_norm(kind: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = load(LayerNormLoader, kind)
    x, dy = torch.randn(2, 6, *shape), torch.randn(2, 6, *shape)
    gamma, beta = torch.randn(shape), torch.randn(shape)
    y, mean, invvar = module.forward_affine(x, shape, gamma, beta, 1e-5)
    leaves = [t.double().requires_grad_() for t in (x, gamma, beta)]
    wanted = torch.nn.functional.layer_norm(leaves[0], shape, leaves[1], leaves[2], 1e-5)
    wanted.backward(dy.double())
    rows = x.double().reshape(12, -1)
    close(y, wanted.detach())
    close(mean, rows.mean(-1))
    close(invvar, (rows.var(-1, correction=0) + 1e-5).rsqrt())
    for found, leaf in zip(module.backward_affine(dy, mean, invvar, x, shape, gamma, beta, 1e-5), leaves, strict=True):
        assert found.shape == leaf.shape and leaf.grad is not None
        close(found, leaf.grad)
    close(module.layer_norm(x.reshape(12, -1), gamma.reshape(-1), beta.reshape(-1)), wanted.detach().reshape(12, -1))
    mixed = module.forward_affine(x.half(), shape, gamma, beta, 1e-5)[0]
    assert mixed.dtype == gamma.dtype
    close(mixed, wanted.detach(), 2e-2)
    with pytest.raises(ValueError, match="needed the last dimensions"):
        module.forward_affine(x, (7,), gamma, beta, 1e-5)


@BOTH
@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_the_norms_of_apex(kind: str, memory_efficient: bool, own: torch.dtype) -> None:
    """fused_layer_norm_cuda: both norms, with and without parameters, forward and backward, of rows of any dtype."""
    torch.manual_seed(0)
    module, shape, eps = load(LayerNormLoader, kind), (3, 4), 1e-3
    x, dy = torch.randn(5, *shape).to(own) + 1, torch.randn(5, *shape)
    gamma, beta = torch.randn(shape), torch.randn(shape)
    gamma[0, 0] = 2.0
    digits = 1e-5 if own == torch.float32 else 2e-2
    for rms, affine in ((False, False), (False, True), (True, False), (True, True)):
        leaves = [t.double().requires_grad_() for t in (x, gamma, beta)[: 1 + affine * (2 - rms)]]
        function = torch.nn.functional.rms_norm if rms else torch.nn.functional.layer_norm
        wanted: torch.Tensor = function(leaves[0], shape, *leaves[1:], eps=eps)  # type: ignore[operator]
        wanted.backward(dy.double())
        name = ("rms_" if rms else "") + "{}" + ("_affine" if affine else "")
        given = (gamma, beta)[: affine * (2 - rms)]
        mixed = affine and own != torch.float32
        forward = getattr(module, name.format("forward") + "_mixed_dtypes" * mixed)
        y, *statistics = forward(x, shape, *given, eps)
        assert y.dtype == (torch.float32 if mixed else own)
        close(y, wanted.detach(), 1e-5 if mixed else digits)
        rows = x.double().reshape(5, -1)
        spread = rows.square().mean(-1) if rms else rows.var(-1, correction=0)
        close(statistics[-1], (spread + eps).rsqrt())
        statistics[:-1] = [None] * (len(statistics) - 1) if memory_efficient else statistics[:-1]
        saved = y if memory_efficient else x
        found = getattr(module, name.format("backward"))(dy, *statistics, saved, shape, *given, eps, memory_efficient)
        for one, leaf in zip(found if affine else [found], leaves, strict=True):
            assert leaf.grad is not None and one.shape == leaf.shape
            close(one, leaf.grad, 1e-4 if own == torch.float32 else 5e-2)
        # The arguments of before apex had the ninth: the input is given.
        again = getattr(module, name.format("backward"))(dy, *statistics, x, shape, *given, eps)
        close((again if affine else [again])[0], leaves[0].grad, digits)  # type: ignore[arg-type]


@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_the_norms_of_deepspeed(own: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual = (torch.randn(2, 3, 64).to(own) for _ in range(2))
    bias, gamma, beta = (torch.randn(64).to(own) for _ in range(3))
    digits, function = (1e-5 if own == torch.float32 else 2e-2), torch.nn.functional
    total = x.double() + bias.double() + residual.double()
    layer = function.layer_norm(total, (64,), gamma.double(), beta.double(), 1e-5)
    given = (x, bias, residual, gamma, beta, 1e-5)
    both = deepspeed.layer_norm_residual_store_pre_ln_res(*given)
    close(both[0], layer, digits)
    close(both[1], total, digits)
    assert torch.equal(deepspeed._layer_norm_residual(*given), both[0]) and both[0].dtype == both[1].dtype == own
    close(deepspeed.layer_norm(x, gamma, beta, 1e-5), _exact(function.layer_norm, x, gamma, beta), digits)
    close(deepspeed.layer_norm(x, gamma.float(), beta, 1e-5), _exact(function.layer_norm, x, gamma, beta), 1e-5)
    close(deepspeed.rms_norm(x, gamma, 1e-5), _exact(function.rms_norm, x, gamma), digits)
    y, added = deepspeed.pre_rms_norm(x, residual, gamma, 1e-5)
    assert torch.equal(added, x + residual)
    close(y, _exact(function.rms_norm, added, gamma), digits)


def _exact(function: Any, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = function(x.double(), x.shape[-1:], *(one.double() for one in parameters), eps=1e-5)
    return found


def test_a_former_name_finds_its_module() -> None:
    with pytest.raises(KernelUnavailable, match="layer_norm cannot be loaded for cuda"):
        LayerNormLoader().load(ext_name="layernorm_cuda")


@BOTH
@pytest.mark.parametrize("heads", [1, 3])
def test_masked_softmax(kind: str, heads: int) -> None:
    torch.manual_seed(0)
    module = load(ScaledMaskedSoftmaxLoader, kind)
    x, dy = torch.randn(2, heads, 4, 7), torch.randn(2, heads, 4, 7)
    mask = (torch.rand(2, 1, 4, 7) < 0.4).to(torch.uint8)
    mask[0, 0, 1] = 1  # a row of masked scores alone comes out even
    y = module.forward(x, mask, 0.5)
    leaf = x.double().requires_grad_()
    wanted = torch.softmax((leaf * 0.5).masked_fill(mask.bool(), -10000.0), -1)
    close(y, wanted.detach())
    assert torch.equal(y, module.forward(x, mask.bool(), 0.5)) and torch.equal(y, module.forward(x, mask.long(), 0.5))
    plain = torch.softmax(leaf * 0.5, -1)
    plain.backward(dy.double())
    assert leaf.grad is not None
    close(module.backward(dy, plain.detach().float(), 0.5), leaf.grad)
    assert module.get_batch_per_block(4, 7, 2, heads) == 1


@BOTH
def test_causal_softmax(kind: str) -> None:
    torch.manual_seed(0)
    module = load(ScaledUpperTriangleMaskedSoftmaxLoader, kind)
    x, dy = torch.randn(6, 5, 5), torch.randn(6, 5, 5)
    leaf = x.double().requires_grad_()
    wanted = torch.softmax((leaf * 0.7).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf), -1)
    wanted.backward(dy.double())
    y = module.forward(x, 0.7)
    close(y, wanted.detach())
    assert leaf.grad is not None
    close(module.backward(dy, y, 0.7), leaf.grad)


@BOTH
def test_inference_ops(kind: str) -> None:
    torch.manual_seed(0)
    module = load(InferenceOpsLoader, kind)
    x, weight = torch.randn(4, 8), torch.randn(8)
    out, residual = torch.empty_like(x), torch.randn(4, 8)
    wide = x.double()
    module.rms_layernorm(out, x, weight, 1e-6)
    close(out, wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight)
    total = x.double() + residual.double()
    given = x.clone()
    module.fused_add_rms_layernorm(given, residual, weight, 1e-6)
    close(residual, total)
    close(given, total * (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight)
    for shape in ((2, 3, 8), (6, 5)):
        ins = torch.randn(shape)
        half = shape[0] // 2
        wanted = torch.nn.functional.silu(ins[:half].double()) * ins[half:].double()
        found = module.silu_and_mul(ins)
        assert found.shape == (shape[1:] if half == 1 else (half, *shape[1:]))
        close(found, wanted.reshape(found.shape))
    with pytest.raises(ValueError, match="needed an even first dimension"):
        module.silu_and_mul(torch.ones(3, 2))
    angle = torch.randn(10, 4)
    cos, sin = torch.empty(4, 4), torch.empty(4, 4)
    for lengths, is_prompts, rows in (([1, 3], True, [0, 0, 1, 2]), ([4, 10, 1, 7], False, [3, 9, 0, 6])):
        module.get_cos_and_sin(angle.cos(), angle.sin(), cos, sin, torch.tensor(lengths), max(lengths), is_prompts)
        assert torch.equal(cos, angle.cos()[rows]) and torch.equal(sin, angle.sin()[rows])
    query, key = torch.randn(4, 3, 8), torch.randn(4, 1, 8)
    wide = [(one.double(), cos.double().unsqueeze(1), sin.double().unsqueeze(1)) for one in (query, key)]
    module.rotary_embedding(query, key, cos, sin, True)
    for found, (one, c, s) in zip((query, key), wide, strict=True):
        a, b = one.chunk(2, -1)
        close(found, torch.cat([a * c - b * s, b * c + a * s], -1))
    with pytest.raises(AttributeError, match="has no 'topk'; it has"):
        _ = module.topk


def test_adam_in_plain_torch_steps_as_the_kernels_do() -> None:
    torch.manual_seed(0)
    kinds = ("cpu_adam_torch", next(n for n in CPUAdamLoader.names() if CPUAdamLoader().load().__name__ == n))
    found = []
    for name in kinds:
        torch.manual_seed(0)
        optimizer = CPUAdamLoader().load(ext_name=name).CPUAdamOptimizer(1e-2, 0.9, 0.99, 1e-8, 0.1, True)
        state = [torch.randn(33) for _ in range(2)] + [torch.zeros(33), torch.zeros(33)]
        for step in (1, 2, 3):
            optimizer.step(step, 1e-2, 0.9, 0.99, 1e-8, 0.1, True, *state, 2.0)
        found.append(state[0])
    # fails if a parameter differs by more than 1e-6
    close(found[0], found[1], 1e-6)


def test_lists_of_tensors() -> None:
    """On the GPU these are kernels; here the same functions over plain torch."""
    torch.manual_seed(0)
    module = load(FusedOptimizerLoader, "torch")
    xs = [torch.randn(5), torch.randn(2, 3).half()]
    outs = [torch.empty(5).bfloat16(), torch.empty(2, 3)]
    flag = torch.zeros(1, dtype=torch.int32)
    module.multi_tensor_scale(65536, flag, [xs, outs], 0.5)
    for x, out in zip(xs, outs, strict=True):
        assert torch.equal(out, (x.float() * 0.5).to(out.dtype))
    assert flag.item() == 0
    total, each = module.multi_tensor_l2norm(65536, flag, [xs], True)
    wanted = torch.stack([x.double().norm() for x in xs])
    close(each, wanted)
    close(total, wanted.norm().reshape(1))
    assert module.multi_tensor_l2norm(65536, flag, [xs])[1].numel() == 0
    xs[1][0, 0] = math.inf
    module.multi_tensor_scale(65536, flag, [xs, outs], 0.5)
    assert flag.item() == 1
    with pytest.raises(KernelUnavailable, match="multi_tensor"):
        FusedOptimizerLoader().load(ext_name="fused_optim_cuda")


def test_the_scale_shrinks_at_the_last_of_several_overflows() -> None:
    """update_scale_hysteresis, beside the rule for one step at a time."""
    module = load(FusedOptimizerLoader, "torch")
    scale, (grown, left) = torch.tensor([3.0e38]), torch.tensor([[0], [2]], dtype=torch.int32)
    seen = []
    for overflow in (0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0):
        given = torch.tensor([float(overflow)])
        assert module.update_scale_hysteresis(scale, grown, left, given, 1.5, 0.5, 2, 2) is scale
        seen.append((round(scale.item() / 1e38, 4), grown.item(), left.item()))
    assert seen == [
        *((3.0, 1, 2), (3.0, 0, 2)),  # twice as much would be infinite
        *((3.0, 0, 1), (1.5, 0, 0), (0.75, 0, -1)),  # the second overflow in a row, and each after it
        *((0.75, 1, 2), (1.125, 0, 2), (1.125, 0, 1), (1.125, 1, 2), (1.6875, 0, 2), (1.6875, 1, 2)),
    ]


def test_attention_by_torch() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    attention = FlashAttentionLoader().load()
    assert attention.source.kind == "package" and "torch" in attention.source.detail
    scores = q.double() @ k.double().mT / math.sqrt(8)
    causal = torch.ones(5, 5).tril().bool()
    close(attention(q, k, v), torch.softmax(scores, -1) @ v.double())
    wanted = torch.softmax(scores.masked_fill(~causal, -math.inf), -1) @ v.double()
    close(attention(q, k, v, is_causal=True), wanted)
    close(attention(q, k, v, attention_mask=causal, is_causal=True), wanted)
    with pytest.raises(ValueError, match="needed a mask for the rows of different lengths"):
        attention(q, k, v, cu_seqlens_q=torch.tensor([0, 5]), max_seqlen_q=5)
    assert FlashAttentionForFloatAndCustomMaskLoader().load(ext_name="flash_attention_torch")(q, k, v).shape == q.shape
