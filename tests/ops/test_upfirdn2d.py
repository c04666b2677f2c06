"""Upsampling, filtering and downsampling: values, gradients, layouts, and the errors for bad input."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad, gradcheck, gradgradcheck  # noqa: E402

from precast import ops  # noqa: E402
from precast.ops.image import reference  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
RAW = torch.ops.precast


def made(*shape: int, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(device)


def generated(case: int) -> tuple[tuple[int, ...], tuple[int, int], tuple[Any, ...]]:
    """A shape, the taps and the op's arguments. Every other case is one that has a kernel of its own on a GPU."""
    number = random.Random(case)
    fast = case % 2 == 0
    while True:
        shape = (number.randint(1, 3), number.randint(1, 3), number.randint(1, 40), number.randint(1, 40))
        taps = (number.randint(1, 4 if fast else 13), number.randint(1, 4 if fast else 13))
        if fast:
            up, down = number.choice([(1, 1), (2, 1), (1, 2)])
            steps: tuple[int, ...] = (up, up, down, down)
        else:
            steps = tuple(number.randint(1, 4) for _ in range(4))
        pads = tuple(number.randint(-4, 9) for _ in range(4))
        wide = shape[3] * steps[0] + pads[0] + pads[1] >= taps[1]
        if wide and shape[2] * steps[1] + pads[2] + pads[3] >= taps[0]:
            return shape, taps, (*steps, *pads, number.random() < 0.5, number.choice([1.0, 4.0, -0.5]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_generated_cases(dtype: Any, device: str, assert_accurate: Callable[..., None]) -> None:
    for case in range(60):
        shape, taps, args = generated(case)
        x, f = made(*shape, dtype=dtype, device=device, seed=case), made(*taps, device=device, seed=case + 1000)
        if case % 4 == 0:  # a column times a row
            f = torch.outer(f[:, 0], f[0])
        exact = reference.upfirdn2d(x.double().cpu(), f.double().cpu(), *args)
        size = reference.upfirdn2d(x.double().cpu().abs(), f.double().cpu().abs(), *args[:-1], abs(args[-1]))
        layouts = [x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)]
        for given in layouts:
            y = RAW.upfirdn2d(given, f, *args)
            last = given.is_contiguous(memory_format=torch.channels_last) and not given.is_contiguous()
            assert y.dtype == dtype
            assert y.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
            if dtype == torch.float64:
                torch.testing.assert_close(y.cpu(), exact, rtol=1e-12, atol=1e-12)
            else:
                allowed = exact.to(dtype)
                assert_accurate(y, exact, allowed, terms=size)


def test_generated_gradients_and_second_gradients(device: str) -> None:
    for case in range(24):
        shape, taps, args = generated(case)
        shape = (1, *shape[1:2], min(shape[2], 5), min(shape[3], 6))
        if shape[3] * args[0] + args[4] + args[5] < taps[1] or shape[2] * args[1] + args[6] + args[7] < taps[0]:
            continue
        x = made(*shape, dtype=torch.float64, device=device, seed=case).requires_grad_()
        f = made(*taps, dtype=torch.float64, device=device, seed=case + 1)
        assert gradcheck(lambda x: RAW.upfirdn2d(x, f, *args), (x,))  # noqa: B023 - called at once
        assert gradgradcheck(lambda x: RAW.upfirdn2d(x, f, *args), (x,))  # noqa: B023


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_large_images(dtype: Any, device: str, assert_accurate: Callable[..., None]) -> None:
    """Several strips and blocks; the filter that generators use, and one that is no product."""
    x = made(2, 3, 131, 200, dtype=dtype, device=device)
    product = ops.setup_filter([1, 3, 3, 1], device=device)
    other = product + torch.eye(4, device=device) / 9
    for f in (product, other):
        for up, down in ((1, 1), (2, 1), (1, 2)):
            for pads in ((1, 1, 1, 1), (2, 1, 2, 1), (0, 0, 3, -2), (-1, 2, 2, 2)):
                args = (up, up, down, down, *pads, False, 4.0)
                exact = reference.upfirdn2d(x.double().cpu(), f.double().cpu(), *args)
                size = reference.upfirdn2d(x.double().cpu().abs(), f.double().cpu().abs(), *args)
                assert_accurate(RAW.upfirdn2d(x, f, *args), exact, exact.to(dtype), terms=size)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_separable_filters_equal_their_product(dtype: Any, device: str) -> None:
    x = made(2, 3, 20, 24, dtype=dtype, device=device).requires_grad_()
    f = ops.setup_filter([1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1], device=device)
    assert f.shape == (12,)
    both = torch.outer(f, f)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype in (torch.float16, torch.bfloat16) else {"rtol": 1e-5, "atol": 1e-6}
    for function, options in (
        (ops.upfirdn2d, {"up": (2, 1), "down": (1, 2), "padding": (5, 6, 4, 5), "gain": 2.0}),
        (ops.filter2d, {"flip_filter": True}),
        (ops.upsample2d, {"up": 2}),
        (ops.downsample2d, {"down": 2, "gain": -1.5}),
    ):
        ours, right = function(x, f, **options), function(x, both, **options)
        torch.testing.assert_close(ours, right, **close)
        grads = [torch.autograd.grad(y.float().sin().sum(), x)[0] for y in (ours, right)]
        torch.testing.assert_close(*grads, **close)


def test_sizes_and_means_of_the_functions_made_of_it(device: str) -> None:
    x = torch.ones(1, 2, 32, 24, device=device)
    for f in (
        ops.setup_filter([1, 3, 3, 1], device=device),
        ops.setup_filter([1, 2, 3, 4, 4, 3, 2, 1], device=device),
        None,
    ):
        for function, shape in (
            (ops.filter2d, (32, 24)),
            (ops.upsample2d, (64, 48)),
            (ops.downsample2d, (16, 12)),
        ):
            y = function(x, f)
            assert y.shape[2:] == shape
            if f is not None:
                edge = 5 * shape[0] // 16 + 1
                inner = y[:, :, edge : shape[0] - edge, edge : shape[1] - edge]
                torch.testing.assert_close(inner, torch.ones_like(inner))
    assert ops.upsample2d(x, None, up=(3, 1)).shape[2:] == (32, 72)
    assert ops.downsample2d(x, None, down=(1, 4), padding=(0, 2, 0, 0)).shape[2:] == (8, 26)


def test_setup_filter() -> None:
    torch.testing.assert_close(ops.setup_filter([1, 1]), torch.full((2, 2), 0.25))
    assert ops.setup_filter(None).tolist() == [[1.0]]
    assert ops.setup_filter(3.0).tolist() == [[1.0]]
    assert ops.setup_filter(range(8)).shape == (8,)
    assert ops.setup_filter(range(7)).shape == (7, 7)
    assert ops.setup_filter([1, 3], separable=True).tolist() == [0.25, 0.75]
    assert ops.setup_filter([1, 3], separable=True, flip_filter=True).tolist() == [0.75, 0.25]
    assert ops.setup_filter([1, 3], normalize=False, separable=True, gain=4.0).tolist() == [2.0, 6.0]
    torch.testing.assert_close(ops.setup_filter([[1, 2], [3, 4]], gain=10.0).sum(), torch.tensor(10.0))
    for f in ([], [[[1.0]]]):
        with pytest.raises(ValueError, match="needed one or two dimensions with at least one tap"):
            ops.setup_filter(f)
    with pytest.raises(ValueError, match="separable is True"):
        ops.setup_filter([[1, 2], [3, 4]], separable=True)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4)], ids=str)
def test_empty_batches(shape: Any, device: str) -> None:
    x = torch.ones(shape, device=device, requires_grad=True)
    y = ops.upsample2d(x, ops.setup_filter([1, 3, 3, 1], device=device))
    assert y.shape == (*shape[:2], 8, 8)
    assert torch.autograd.grad(y.sum(), x)[0].shape == shape


def test_a_filter_of_a_converted_model(device: str) -> None:
    x, f = made(1, 2, 6, 6, dtype=torch.float16, device=device), ops.setup_filter([1, 3, 3, 1], device=device)
    assert torch.equal(ops.upsample2d(x, f.half()), ops.upsample2d(x, f))


def test_nothing_of_the_image_is_left_but_padding(device: str) -> None:
    x, f = made(1, 1, 4, 4, device=device), torch.ones(2, 2, device=device)
    assert not RAW.upfirdn2d(x, f, 1, 1, 1, 1, -5, 9, 0, 0, False, 1.0).any()


TRANSFORMS = {
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sin().sum())(x),
    "vmap": lambda f, x: torch.vmap(f)(torch.stack([x, x.flip(0)])),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(transform: str, device: str) -> None:
    x, f = made(2, 3, 6, 7, device=device), made(3, 4, device=device, seed=1)
    args = (2, 1, 1, 3, 2, 1, 0, 4, False, 1.5)
    ours = TRANSFORMS[transform](lambda x: RAW.upfirdn2d(x, f, *args), x)
    right = TRANSFORMS[transform](lambda x: reference.upfirdn2d(x, f, *args), x)
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)


PLAIN = (1, 1, 1, 1, 0, 0, 0, 0, False, 1.0)
FAR = (1 << 30) + 1
BAD = {
    "integers": (lambda x, f: (x.long(), f, *PLAIN), "x is int64; needed float32, float16, bfloat16 or float64"),
    "three dimensions": (lambda x, f: (x[0], f, *PLAIN), r"x has shape \(2, 4, 5\); needed \(images, channels,"),
    "no pixel": (lambda x, f: (x[:, :, :0], f, *PLAIN), "with at least one pixel"),
    "a filter of one dimension": (lambda x, f: (x, f[0], *PLAIN), r"filter has shape \(3,\); needed \(height, width\)"),
    "no tap": (lambda x, f: (x, f[:0], *PLAIN), "with at least one tap"),
    "a filter of integers": (lambda x, f: (x, f.long(), *PLAIN), "filter is int64 and x is float32; needed a float32"),
    "a filter of float64": (lambda x, f: (x, f.double(), *PLAIN), "filter is float64 and x is float32; needed a"),
    "a filter elsewhere": (lambda x, f: (x, f.to("meta"), *PLAIN), "filter is on meta and x on (cpu|cuda:0)"),
    "up 0": (lambda x, f: (x, f, 0, *PLAIN[1:]), "up_x is 0 and down_x is 1; needed 1 or more"),
    "down 0": (lambda x, f: (x, f, 1, 1, 1, 0, *PLAIN[4:]), "up_y is 1 and down_y is 0; needed 1 or more"),
    "a larger filter": (
        lambda x, f: (x, f.repeat(2, 2), *PLAIN),
        "along y the image has 4 pixels after upsampling and padding; needed at least the 6 taps",
    ),
    "a larger crop": (lambda x, f: (x, f, 1, 1, 1, 1, -3, -3, 0, 0, False, 1.0), "along x the image has -1 pixels"),
    # Each number alone, the others so that the sum fits.
    **{
        f"{name} beyond 2^30": (
            lambda x, f, args=args: (x, f, *args, 0, 0, False, 1.0),
            r"along x a size, a step or a padding is beyond 2\^30",
        )
        for name, args in {
            "up": (FAR, 1, 1, 1, -4 * FAR, 0),
            "down": (1, 1, FAR, 1, 0, 0),
            "a padding before": (1, 1, 1, 1, FAR, -(1 << 30)),
            "a crop before": (1, 1, 1, 1, -FAR, 1 << 30),
            "a padding behind": (1, 1, 1, 1, -(1 << 30), FAR),
            "a crop behind": (1, 1, 1, 1, 1 << 30, -FAR),
            "the upsampled size": (1 << 28, 1, 1 << 28, 1, -(1 << 28), 0),
        }.items()
    },
}


@pytest.mark.parametrize("way", ["kernel", "gradient", "tangent"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, way: str, device: str) -> None:
    make, message = BAD[case]
    x, *rest = make(made(3, 2, 4, 5, device=device), torch.ones(3, 3, device=device))
    if way == "gradient" and x.is_floating_point():
        x.requires_grad_()
    if way == "tangent":
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match=message):
            RAW.upfirdn2d(x, *rest)
    else:
        with pytest.raises(RuntimeError, match=message):
            RAW.upfirdn2d(x, *rest)


def test_bad_options_are_refused(device: str) -> None:
    x, f = made(1, 1, 4, 4, device=device), torch.ones(2, 2, device=device)
    with pytest.raises(ValueError, match=r"up is \(1, 2, 3\); needed a number, or two"):
        ops.upfirdn2d(x, f, up=(1, 2, 3))
    with pytest.raises(ValueError, match=r"padding is \(1, 2, 3\); needed a number, two, or four"):
        ops.upfirdn2d(x, f, padding=(1, 2, 3))
    with pytest.raises(ValueError, match=r"no gradient for its filter.*needed f.detach\(\)"):
        ops.upfirdn2d(x, f.requires_grad_())
    with pytest.raises(RuntimeError, match=r"no gradient for its filter.*needed filter.detach\(\)"):
        RAW.upfirdn2d(x, f.requires_grad_(), *PLAIN).sum().backward()


@pytest.mark.gpu
@pytest.mark.parametrize("taps", [2, 5], ids=["strips", "general"])
def test_more_elements_than_32_bits_count(taps: int) -> None:
    x = torch.zeros(5, 1, 1 << 15, (1 << 14) + 8, dtype=torch.float16, device="cuda")
    x[-1, -1, -3:, -5:] = 1.0
    f = torch.ones(taps, taps, device="cuda")
    args = (1, 1, 1, 1, taps - 1, 0, taps - 1, 0, False, 1.0)
    y = RAW.upfirdn2d(x, f, *args)
    assert torch.equal(y[-1:, :, -9:, -9:], RAW.upfirdn2d(x[-1:, :, -20:, -20:].contiguous(), f, *args)[..., -9:, -9:])
    assert not y[:-1, :, :9, -9:].any()
