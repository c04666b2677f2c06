"""The image ops' device code in the emulator: every kernel gives the numbers of the reference."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.image import reference, setup_filter  # noqa: E402
from tests.unit.csrc.emulated import Emulated, made, unaligned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("image",)
DTYPES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-12}


def close(ours: Any, right: Any, dtype: Any) -> None:
    torch.testing.assert_close(ours.double(), right.double(), rtol=DTYPES[dtype], atol=4 * DTYPES[dtype])


@pytest.mark.parametrize("act", range(9))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias_act(gpu: Emulated, dtype: Any, act: int) -> None:
    kernels = set()
    for shape, dim, last in (
        ((2, 3, 8, 8), 1, False),
        ((2, 3, 3, 5), 1, False),
        ((1, 2, 5003), 1, False),  # planes of several blocks, and blocks of several planes
        ((3, 40, 5, 9), 1, False),
        ((2, 16, 3, 3), 1, True),
        ((40, 9), 1, False),
    ):
        x, b, grad = (made(*size, seed=i).to(dtype) for i, size in enumerate((shape, (shape[dim],), shape)))
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        options = (dim, act, 0.3, 1.5, 1.2 if act % 2 else -1.0)
        close(gpu.ops.bias_act(x, b, *options), reference.bias_act(x, b, *options), dtype)
        for of_output in (False, True)[: 1 + (act <= 2)]:
            args = (grad, x, b, *options, of_output, True)
            for ours, right in zip(gpu.ops.bias_act_backward(*args), reference.bias_act_backward(*args), strict=True):
                close(ours, right, dtype)
        close(gpu.ops.bias_act(x, None, *options), reference.bias_act(x, None, *options), dtype)
        kernels |= {launch.partition("<")[0] for launch in gpu.launches().split()}
    assert any(name.endswith(("_any", "_f64")) for name in kernels)
    name = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}.get(dtype)
    assert (f"bias_act_{name}" in kernels) == (act <= 2 and name is not None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_upfirdn2d(gpu: Emulated, dtype: Any) -> None:
    kernels = set()
    product, other = setup_filter([1, 3, 3, 1]), made(4, 3)
    for f in (product, other, made(6, 5)):
        for steps in ((1, 1, 1, 1), (2, 2, 1, 1), (1, 1, 2, 2), (3, 2, 1, 2)):
            for pads in ((2, 1, 1, 2), (-1, 4, 3, -2), (0, 6, 5, 1)):
                args = (f, *steps, *pads, pads[0] > 0, 1.5)
                even = made(1, 2, 7, 12).to(dtype)  # by words of two pixels, or one by one
                ours = gpu.ops.upfirdn2d(even, *args)
                close(ours, reference.upfirdn2d(even, *args), dtype)
                assert torch.equal(ours, gpu.ops.upfirdn2d(unaligned(even), *args))
                x = made(1, 2, 19, 11).to(dtype)
                close(gpu.ops.upfirdn2d(x, *args), reference.upfirdn2d(x, *args), dtype)
                last = x.contiguous(memory_format=torch.channels_last)
                close(gpu.ops.upfirdn2d(last, *args), reference.upfirdn2d(x, *args), dtype)
        kernels |= {launch.partition("<")[0] for launch in gpu.launches().split()}
    ways = {"_general"} if dtype == torch.float64 else {"", "_up", "_down", "_general"}
    name = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}[dtype]
    assert kernels == {f"upfirdn2d{way}_{name}" for way in ways}


def test_a_filter_with_an_infinite_tap_is_not_taken_for_a_product(gpu: Emulated) -> None:
    f, x = setup_filter([1, 3, 3, 1]), made(1, 2, 7, 12).abs() + 0.1
    f[0, 0] = float("inf")
    args = (f, 1, 1, 1, 1, 0, 0, 0, 0, False, 1.0)  # without padding, whose zeros would make NaN of it
    assert reference.upfirdn2d(x, *args).isinf().all()
    assert gpu.ops.upfirdn2d(x, *args).isinf().all()
