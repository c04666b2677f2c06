"""The kernels against the definitions, in plain torch and float64; gradients of the first and second order."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from image_ops import fused_leaky_relu, upfirdn2d
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


def reference(x: torch.Tensor, kernel: torch.Tensor, up: int, down: int, pad: tuple[int, int]) -> torch.Tensor:
    """The definition, step by step."""
    planes, height, width = x.shape
    spread = x.new_zeros(planes, height * up, width * up, dtype=torch.float64)
    spread[:, ::up, ::up] = x.double()
    padded = functional.pad(spread, (*pad, *pad))
    filtered = functional.conv2d(padded[:, None], kernel.double().flip(0, 1)[None, None])
    return filtered[:, 0, ::down, ::down]


PADS, TAPS = ((0, 0), (2, 1), (-1, 3)), ((1, 1), (4, 4), (3, 5))
CASES = list(itertools.product((1, 2, 3), (1, 2, 3), PADS, TAPS))


@pytest.mark.parametrize(("up", "down", "pad", "taps"), CASES)
def test_upfirdn2d(up: int, down: int, pad: tuple[int, int], taps: tuple[int, int], device: str) -> None:
    torch.manual_seed(2)
    x = torch.randn(3, 11, 8, device=device)
    filter_ = torch.randn(taps, device=device)
    close(upfirdn2d(x, filter_, up, down, pad), reference(x, filter_, up, down, pad), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_upfirdn2d_in_every_type(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(3)
    x = torch.randn(2, 3, 16, 16, dtype=dtype, device=device).transpose(2, 3)
    filter_ = torch.rand(4, 4, device=device) / 8
    exact = reference(x.flatten(0, 1), filter_, 2, 1, (2, 1)).view(2, 3, 32, 32)
    close(upfirdn2d(x, filter_, 2, 1, (2, 1)), exact, dtype)


@pytest.mark.parametrize(("up", "down", "pad"), [(1, 1, (0, 0)), (2, 1, (2, 1)), (1, 2, (1, 2)), (3, 2, (-1, 4))])
def test_gradients_of_upfirdn2d(up: int, down: int, pad: tuple[int, int], device: str) -> None:
    torch.manual_seed(4)
    x = torch.randn(4, 5, dtype=torch.float64, device=device, requires_grad=True)
    filter_ = torch.randn(2, 3, dtype=torch.float64, device=device)
    assert torch.autograd.gradcheck(lambda x: upfirdn2d(x, filter_, up, down, pad), x)
    assert torch.autograd.gradgradcheck(lambda x: upfirdn2d(x, filter_, up, down, pad), x)


def test_what_makes_no_sense_is_refused(device: str) -> None:
    x, taps = torch.ones(2, 3, 4, device=device), torch.ones(2, 2, device=device)
    for complaint, call in {
        "needs one value for each entry": lambda: fused_leaky_relu(x, torch.ones(4, device=device)),
        "bias is Double": lambda: fused_leaky_relu(x, torch.ones(3, dtype=torch.float64, device=device)),
        "it takes float32": lambda: fused_leaky_relu(x.long()),
        "the one must be > 0": lambda: fused_leaky_relu(x, scale=-1.0),
        "act is 2": lambda: kernel("fused").fused_bias_act(x, x.new_empty(0), x.new_empty(0), 2, 0, 0.2, 1.0),
        "needs the output": lambda: kernel("fused").fused_bias_act(x, x.new_empty(0), x.new_empty(0), 3, 1, 0.2, 1.0),
        "up is 0": lambda: upfirdn2d(x, taps, up=0),
        "a kernel of 2 taps needs": lambda: upfirdn2d(x, taps, pad=(-2, -1)),
        "no gradient for its kernel": lambda: upfirdn2d(x, taps.requires_grad_()),
    }.items():
        with pytest.raises((RuntimeError, ValueError), match=complaint):
            call()
