"""The kernels against the definitions, in plain torch and float64; gradients of the first and second order."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from image_ops import fused_leaky_relu
from image_ops.compiled import kernel

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SHAPES = [(3, 5), (2, 3, 7), (2, 3, 4, 5), (1, 1, 1, 1), (0, 3, 4), (2, 17, 33, 31)]

pytestmark = pytest.mark.parametrize("device", DEVICES)


def close(ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, rtol=DTYPES[dtype], atol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bias_and_leaky_relu(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype, device=device)
    bias = torch.randn(shape[1], dtype=dtype, device=device)
    along = bias.double().reshape(1, -1, *([1] * (len(shape) - 2)))
    close(fused_leaky_relu(x, bias, 0.1, 1.5), functional.leaky_relu(x.double() + along, 0.1) * 1.5, dtype)
    close(fused_leaky_relu(x), functional.leaky_relu(x.double(), 0.2) * 2**0.5, dtype)


def test_as_the_two_passes_call_it(device: str) -> None:
    """The calls of a training loop, spelled out: forward, then the gradient by the output's sign."""
    fused = kernel("fused")
    x = torch.tensor([[-2.0, 3.0], [4.0, -0.0]], device=device)
    bias = torch.tensor([1.0, 0.0], device=device)
    empty = x.new_empty(0)
    negative_slope, scale = 0.25, 2.0
    out = fused.fused_bias_act(x, bias, empty, 3, 0, negative_slope, scale)
    assert out.tolist() == [[-0.5, 6.0], [10.0, -0.0]]
    grad_output = torch.ones_like(x)
    grad = fused.fused_bias_act(grad_output, empty, out, 3, 1, negative_slope, scale)
    assert grad.tolist() == [[0.5, 2.0], [2.0, 0.5]]
    assert not fused.fused_bias_act(grad_output, empty, out, 3, 2, negative_slope, scale).any()
    assert fused.fused_bias_act(x, bias, empty, 1, 0, negative_slope, scale).tolist() == [[-2.0, 6.0], [10.0, 0.0]]


def test_not_a_number_stays_one(device: str) -> None:
    assert fused_leaky_relu(torch.tensor([[float("nan"), 1.0]], device=device)).isnan().tolist() == [[True, False]]


def test_gradients_of_the_activation(device: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 3, 4, dtype=torch.float64, device=device, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(fused_leaky_relu, (x, bias))
    assert torch.autograd.gradgradcheck(fused_leaky_relu, (x, bias))


def test_what_makes_no_sense_is_refused(device: str) -> None:
    x = torch.ones(2, 3, 4, device=device)
    for complaint, call in {
        "needs one value for each entry": lambda: fused_leaky_relu(x, torch.ones(4, device=device)),
        "bias is Double": lambda: fused_leaky_relu(x, torch.ones(3, dtype=torch.float64, device=device)),
        "it takes float32": lambda: fused_leaky_relu(x.long()),
        "the one must be > 0": lambda: fused_leaky_relu(x, scale=-1.0),
        "act is 2": lambda: kernel("fused").fused_bias_act(x, x.new_empty(0), x.new_empty(0), 2, 0, 0.2, 1.0),
        "needs the output": lambda: kernel("fused").fused_bias_act(x, x.new_empty(0), x.new_empty(0), 3, 1, 0.2, 1.0),
    }.items():
        with pytest.raises((RuntimeError, ValueError), match=complaint):
            call()
