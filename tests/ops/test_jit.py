"""The TorchScript helpers: numbers and gradients, scripted and compiled."""

from __future__ import annotations

import pytest
import torch

from precast import jit
from precast.compat import jit as compat

pytestmark = pytest.mark.torch


def test_bias_gelu_and_its_gradient() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 8, requires_grad=True)
    bias = torch.randn(8, requires_grad=True)
    wide = [t.detach().double().requires_grad_() for t in (x, bias)]
    wanted = torch.nn.functional.gelu(wide[0] + wide[1], approximate="tanh")
    for _ in range(4):  # the profiled calls, and those after it
        x.grad = bias.grad = None
        y = jit.bias_gelu_impl(x, bias)
        y.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(y.double(), wanted)
    for ours, exact in zip((x, bias), wide, strict=True):
        assert ours.grad is not None and exact.grad is not None and ours.grad.shape == exact.grad.shape
        torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)
    assert torch.autograd.gradcheck(jit.GeLUFunction.apply, [t.detach().requires_grad_() for t in wide])


def test_bias_dropout_add() -> None:
    torch.manual_seed(0)
    x, bias, residual = torch.randn(50, 40), torch.randn(40), torch.randn(50, 40)
    torch.testing.assert_close(jit.bias_dropout_add_fused_inference(x, bias, residual, 0.5), residual + x + bias)
    dropped = jit.bias_dropout_add_fused_train(x, bias, residual, 0.25) - residual
    kept = (dropped.abs() > 1e-6).float().mean().item()
    assert 0.7 < kept < 0.8
    torch.testing.assert_close(dropped[dropped.abs() > 1e-6], ((x + bias) / 0.75)[dropped.abs() > 1e-6])


def test_they_are_traced_by_a_compiler() -> None:
    x, bias = torch.randn(4, 8), torch.randn(8)
    step = torch.compile(
        lambda a, b: jit.bias_dropout_add_fused_inference(a, b, a, 0.1), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(step(x, bias), x + x + bias)


def test_warming_up_scripts_each_once() -> None:
    jit.set_jit_fusion_options()
    jit.set_jit_fusion_options()
    jit.warmup_jit_fusion(2, 8, seq_length=4, vocab_size=16)
    assert compat._script(compat._train) is compat._script(compat._train)
    assert isinstance(compat._script(compat._bias_gelu), torch.jit.ScriptFunction)
