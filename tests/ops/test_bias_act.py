"""Bias with activation: values, gradients of both orders, layouts, and the errors for bad input."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad, gradcheck, gradgradcheck  # noqa: E402

from precast import ops  # noqa: E402
from precast.ops.image import ACTIVATIONS, reference  # noqa: E402
from tests.ops.tensors import assert_same_with_any_number_of_threads  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
RAW = torch.ops.precast
# Each shape with the dimension of the bias: planes of whole vectors and others, columns, single numbers, wide rows.
SHAPES = [
    ((2, 3, 16, 16), 1),
    ((3, 5, 7, 9), 1),
    ((2, 4, 1, 3), 1),
    ((5, 24), 1),
    ((33, 7), 1),
    ((4, 6, 40), 2),
    ((6, 4, 5), 0),
    ((11,), 0),
    ((2, 2, 5000), 1),
    ((300, 16, 2, 2), 1),
    ((2, 3, 4, 2, 8), 1),
]


def made(*shape: int, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * 2).to(dtype).to(device)


def by_torch(x: Any, b: Any, dim: int, act: str, alpha: float, gain: float, clamp: float | None) -> Any:
    """The definition, by torch's own functions where it has one."""
    u = x if b is None else x + b.to(x.dtype).reshape([-1 if i == dim else 1 for i in range(x.dim())])
    functional = torch.nn.functional
    y = {
        "linear": lambda: u,
        "relu": lambda: functional.relu(u),
        "lrelu": lambda: functional.leaky_relu(u, alpha),
        "tanh": lambda: torch.tanh(u),
        "sigmoid": lambda: torch.sigmoid(u),
        "elu": lambda: functional.elu(u),
        "selu": lambda: functional.selu(u),
        "softplus": lambda: functional.softplus(u),
        "swish": lambda: functional.silu(u),
    }[act]()
    y = y * gain
    return y if clamp is None else y.clamp(-clamp, clamp)


@pytest.fixture(params=ACTIVATIONS)
def act(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("clamp", [None, 1.3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients(
    act: str, dtype: Any, clamp: float | None, device: str, assert_accurate: Callable[..., None]
) -> None:
    for shape, dim in SHAPES:
        x, b = made(*shape, dtype=dtype, device=device), made(shape[dim], dtype=dtype, device=device, seed=1)
        grad = made(*shape, dtype=dtype, device=device, seed=2)
        options = (dim, act, 0.3, 1.7, clamp)
        leaves = [x.requires_grad_(), b.requires_grad_()]
        y = ops.bias_act(*leaves, *options)
        ours = (y, *torch.autograd.grad(y, leaves, grad))
        wide = [t.detach().double().cpu().requires_grad_() for t in leaves]
        exact_y = by_torch(*wide, *options)
        exact = (exact_y, *torch.autograd.grad(exact_y, wide, grad.double().cpu()))
        if clamp is not None:  # what lies within a rounding of the clamp may count as clamped
            near = (exact_y.detach().abs() - clamp).abs() < 0.02
            grad = grad.masked_fill(near.to(device), 0)
            ours = (y, *torch.autograd.grad(ops.bias_act(*leaves, *options), leaves, grad))
            exact_y = by_torch(*wide, *options)
            exact = (exact_y, *torch.autograd.grad(exact_y, wide, grad.double().cpu()))
        others = [i for i in range(len(shape)) if i != dim]
        size = exact[1].abs().sum(others) if others else exact[1].abs()
        # Sums and differences: an error is one of the terms.
        terms = (exact[0].detach().abs() + x.detach().double().cpu().abs() + 2, exact[1].abs() + 8, size + 8)
        for one, right, term in zip(ours, exact, terms, strict=True):
            assert one.dtype == dtype and one.shape == right.shape
            if dtype == torch.float64:
                torch.testing.assert_close(one.cpu(), right, rtol=1e-12, atol=1e-12)
            else:
                assert_accurate(one, right.detach(), right.detach().to(dtype), terms=term.detach())


def test_generated_gradients_and_second_gradients(act: str, device: str) -> None:
    """Gradcheck and gradgradcheck in float64, over generated shapes, dimensions and layouts."""
    random_of = random.Random(act)
    for case in range(6):
        shape = [random_of.randint(1, 4) for _ in range(random_of.choice([1, 2, 3, 4]))]
        dim = random_of.randrange(len(shape))
        x = made(*shape, dtype=torch.float64, device=device, seed=case)
        b = made(shape[dim], dtype=torch.float64, device=device, seed=case + 50)
        shifted = x + b.reshape([-1 if i == dim else 1 for i in range(len(shape))])
        x = torch.where(shifted.abs() < 0.05, x + 0.2, x)  # away from the corner at zero
        if len(shape) == 4 and case % 2:
            x = x.contiguous(memory_format=torch.channels_last)
        options = (dim, act, random_of.choice([0.0, 0.3, -0.5]), random_of.choice([1.0, 0.7, -1.5]))
        clamp = random_of.choice([None, 50.0])
        inputs = (x.requires_grad_(), b.requires_grad_() if case % 3 else None)
        assert gradcheck(lambda x, b: ops.bias_act(x, b, *options, clamp), inputs)  # noqa: B023 - called at once
        assert gradgradcheck(lambda x, b: ops.bias_act(x, b, *options, clamp), inputs)  # noqa: B023


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_second_gradients_by_kernels_equal_the_reference(dtype: Any, device: str) -> None:
    """R1's double backward: the gradients of straight lines are linear in the gradient."""
    for name in ("linear", "relu", "lrelu"):
        x, b = made(4, 6, 8, 8, dtype=dtype, device=device), made(6, dtype=dtype, device=device, seed=1)
        leaves, found = [x.requires_grad_(), b.requires_grad_()], []
        number = ACTIVATIONS[name].number
        for function in (
            lambda x, b: ops.bias_act(x, b, 1, name, 0.2, 1.5, 2.0),  # noqa: B023 - called at once
            lambda x, b: reference.bias_act(x, b, 1, number, 0.2, 1.5, 2.0),  # noqa: B023
        ):
            grad = torch.ones(4, 6, 8, 8, dtype=dtype, device=device, requires_grad=True)
            first = torch.autograd.grad(function(*leaves), leaves, grad, create_graph=True)
            total = (first[0].float() * x.detach().float()).sum() + (first[1].float() * b.detach().float()).sum()
            found.append(torch.autograd.grad(total, grad)[0])
        # A result that is rounded to the clamp counts as clamped.
        v = reference.bias_act(x.double(), b.double(), 1, number, 0.2, 1.5, -1.0)
        ours, right = (t.masked_fill((v.abs() - 2.0).abs() < 0.02, 0) for t in found)
        torch.testing.assert_close(ours, right, rtol=2e-2 if dtype == torch.bfloat16 else 2e-3, atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 16, 5, 6), (2, 7, 4, 4), (2, 8, 3, 4, 2)], ids=str)
def test_channels_last_stays_and_gives_the_same_numbers(shape: Any, dtype: Any, act: str, device: str) -> None:
    memory_format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x, b = made(*shape, dtype=dtype, device=device), made(shape[1], dtype=dtype, device=device, seed=1)
    grad = made(*shape, dtype=dtype, device=device, seed=2)
    results = []
    for last in (False, True):
        given = (x.contiguous(memory_format=memory_format) if last else x).requires_grad_()
        bias = b.detach().requires_grad_()
        y = ops.bias_act(given, bias, act=act, clamp=3.0)
        assert y.is_contiguous(memory_format=memory_format if last else torch.contiguous_format)
        for slopes in (grad, grad.contiguous(memory_format=memory_format)):
            grads = torch.autograd.grad(y, (given, bias), slopes, retain_graph=True)
            assert grads[0].is_contiguous(memory_format=memory_format if last else torch.contiguous_format)
            results.append((y, *grads))
    for other in results[1:]:
        assert torch.equal(results[0][0], other[0]) and torch.equal(results[0][1], other[1])
        torch.testing.assert_close(results[0][2], other[2], rtol=1e-2 if dtype == torch.bfloat16 else 2e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_other_layouts_give_the_numbers_of_contiguous_memory(dtype: Any, device: str) -> None:
    base = made(4, 12, 10, 18, dtype=dtype, device=device)
    b = made(6, dtype=dtype, device=device, seed=1)
    for x in (
        base[:, ::2, 1:, 1:17],
        base[:, :6].transpose(2, 3),
        base[:1, :6, :1, :1].expand(4, 6, 5, 8),
        base.flatten()[1 : 1 + 4 * 6 * 5 * 8].view(4, 6, 5, 8),
    ):
        for act in ("lrelu", "swish"):
            assert torch.equal(ops.bias_act(x, b, act=act), ops.bias_act(x.contiguous(), b, act=act))
            grad = torch.ones((), dtype=dtype, device=device).expand(x.shape)
            ours, plain = (
                torch.autograd.grad(ops.bias_act(leaf.requires_grad_(), b, act=act), leaf, grad)[0]
                for leaf in (x.detach(), x.detach().contiguous())
            )
            assert torch.equal(ours, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_float32_bias_of_narrower_images(dtype: Any, act: str, device: str) -> None:
    x, b = made(2, 6, 8, 8, dtype=dtype, device=device), made(6, device=device, seed=1)
    for last in (False, True):
        leaf = (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()
        bias = b.detach().requires_grad_()
        y = ops.bias_act(leaf, bias, act=act)
        exact = reference.bias_act(leaf, bias, 1, ACTIVATIONS[act].number, 0.2, ACTIVATIONS[act].def_gain, -1.0)
        torch.testing.assert_close(y, exact, rtol=1e-2, atol=1e-2)
        ours = torch.autograd.grad(y.float().sum(), (leaf, bias))
        assert ours[1].dtype == torch.float32
        torch.testing.assert_close(ours, torch.autograd.grad(exact.float().sum(), (leaf, bias)), rtol=1e-2, atol=2e-2)


def test_the_bias_gradient_is_summed_before_it_is_rounded_and_repeats(device: str) -> None:
    x = made(16, 4, 128, 128, dtype=torch.bfloat16, device=device)
    for given in (x, x.contiguous(memory_format=torch.channels_last)):
        leaf, b = given.requires_grad_(), torch.zeros(4, dtype=torch.bfloat16, device=device, requires_grad=True)
        y = ops.bias_act(leaf, b, act="lrelu")
        grad = made(*x.shape, dtype=torch.bfloat16, device=device, seed=3)
        first, again = (torch.autograd.grad(y, (leaf, b), grad, retain_graph=True) for _ in range(2))
        assert all(map(torch.equal, first, again))
        slopes = torch.where(x.detach() > 0, 1.0, 0.2).double() * math.sqrt(2)
        exact = (grad.double() * slopes).sum((0, 2, 3))
        torch.testing.assert_close(first[1].double(), exact, rtol=2**-8, atol=1e-2)


def test_the_same_numbers_with_any_number_of_threads() -> None:
    x, b = made(3, 5, 100, 101).requires_grad_(), made(5, seed=1).requires_grad_()

    def computed() -> tuple[Any, ...]:
        y = ops.bias_act(x, b, act="swish")
        return (y, *torch.autograd.grad(y.sum(), (x, b)))

    assert_same_with_any_number_of_threads(computed)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4)], ids=str)
def test_empty_tensors(shape: Any, act: str, device: str) -> None:
    x = torch.ones(shape, device=device, requires_grad=True)
    b = torch.ones(shape[1], device=device, requires_grad=True)
    y = ops.bias_act(x, b, act=act)
    assert y.shape == shape
    grads = torch.autograd.grad(y.sum(), (x, b))
    assert grads[0].shape == shape and torch.equal(grads[1], torch.zeros_like(b))


def test_special_values(act: str, device: str) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 80.0, -80.0], device=device)
    for dtype in DTYPES:
        y = ops.bias_act(x.to(dtype), act=act, gain=1.0)
        right = by_torch(x.to(dtype).double(), None, 1, act, 0.2, 1.0, None)
        torch.testing.assert_close(y.double(), right, rtol=1e-2, atol=1e-6, equal_nan=True)
        clamped = ops.bias_act(x.to(dtype), act=act, gain=1.0, clamp=2.0)
        assert bool(clamped[0].isnan()) and float(clamped.nan_to_num(0).abs().max()) <= 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("act", ["linear", "relu", "lrelu"])
def test_what_is_clamped_has_no_gradient_however_the_clamp_is_rounded(act: str, dtype: Any, device: str) -> None:
    """Clamps that 16 bits round down, up, and to infinity."""
    run = functools.partial(ops.bias_act, act=act, alpha=0.5, gain=1.0)
    for clamp in (0.3, 0.7, 1.1, 1 / 3, 255.7, 3e4, 3e-6, 0.0):
        x = (torch.tensor([0.5, 0.99, 1.01, 2, 1e3]) * clamp).to(device, dtype)
        x = torch.cat([x, -x]).requires_grad_()
        (grad,) = torch.autograd.grad(run(x, clamp=clamp).sum(), x)
        value = x.detach().float() * torch.where(x < 0, {"linear": 1.0, "relu": 0.0, "lrelu": 0.5}[act], 1.0)
        reached = (value.abs() >= clamp) | (value.to(dtype).abs() >= torch.tensor(clamp).to(dtype).to(device))
        assert not grad[reached].any(), clamp
        (free,) = torch.autograd.grad(run(x).sum(), x)
        assert torch.equal(grad[~reached], free[~reached])
        by_reference = torch.func.grad(lambda x, clamp: run(x, clamp=clamp).sum())(x.detach(), clamp)
        assert torch.equal(grad, by_reference)


@pytest.mark.parametrize("act", ["relu", "lrelu"])
def test_a_result_that_underflows_keeps_its_slope(act: str, device: str) -> None:
    tiny = torch.tensor([1e-9, -1e-9, 0.0], device=device)
    for x, bias, gain in (
        (torch.zeros(3, 3, dtype=torch.float16, device=device), tiny, 2.0),  # the bias is wider
        (torch.full((3, 3), 2**-24, dtype=torch.float16, device=device), None, 0.25),
        (torch.full((3, 3), 1e-40, dtype=torch.bfloat16, device=device), None, 1e-3),
        (torch.full((3, 3), 1e-40, device=device), None, 1e-8),
    ):
        x.requires_grad_()
        y = ops.bias_act(x, bias, act=act, alpha=0.5, gain=gain)
        assert not y.any()
        (grad,) = torch.autograd.grad(y.sum(), x)
        low = gain * {"relu": 0.0, "lrelu": 0.5}[act]
        slopes = [gain] * 3 if bias is None else [gain, low, low]
        assert torch.equal(grad, torch.tensor(slopes, device=device).to(grad.dtype).expand(3, 3))


def test_a_clamp_of_zero_and_defaults(device: str) -> None:
    x, b = made(2, 3, 4, device=device), made(3, device=device, seed=1)
    assert not ops.bias_act(x, b, act="lrelu", clamp=0).any()
    shifted = x + b[:, None]
    torch.testing.assert_close(ops.bias_act(x, b), shifted)
    slopes = torch.nn.functional.leaky_relu(shifted, 0.2) * 2**0.5
    torch.testing.assert_close(ops.bias_act(x, b, act="lrelu"), slopes)
    torch.testing.assert_close(ops.fused_leaky_relu(x, b), slopes)
    torch.testing.assert_close(ops.bias_act(x, b, dim=-2, act="lrelu"), slopes)


@pytest.mark.parametrize("act", ["relu", "lrelu"])
def test_at_zero_and_nan_every_way_takes_the_slope_below(act: str, device: str) -> None:
    x, b = torch.tensor([[0.0, -0.0, torch.nan, 1.0]], device=device).T, torch.zeros(1, device=device)

    def total(x: Any) -> Any:
        return ops.bias_act(x, b, act=act, alpha=0.25, gain=1.0).sum()

    x.requires_grad_()
    (ours,) = torch.autograd.grad(total(x), x)
    slope = 0.25 if act == "lrelu" else 0.0
    assert ours.flatten().tolist() == [slope, slope, slope, 1.0]
    assert torch.equal(torch.func.grad(total)(x.detach())[:2], ours[:2])


TRANSFORMS = {
    "jvp": lambda f, x, b: torch.func.jvp(f, (x, b), (torch.ones_like(x), torch.ones_like(b))),
    "grad": lambda f, x, b: torch.func.grad(lambda x, b: f(x, b).sin().sum(), argnums=(0, 1))(x, b),
    "vmap": lambda f, x, b: torch.vmap(f, in_dims=(0, None))(x, b),
    "functionalize": lambda f, x, b: torch.func.functionalize(f)(x, b),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(act: str, transform: str, device: str) -> None:
    x, b = made(3, 2, 4, 5, device=device), made(4, device=device, seed=1)
    function = TRANSFORMS[transform]
    ours = function(lambda x, b: ops.bias_act(x, b, -2, act), x, b)
    kind = ACTIVATIONS[act]
    right = function(lambda x, b: by_torch(x, b, x.dim() - 2, act, 0.2, kind.def_gain, None), x, b)
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)


BAD = {
    "integers": (lambda x, b: (x.long(), b), r"x is int64; needed float32, float16, bfloat16 or float64"),
    "a longer bias": (lambda x, b: (x, b.repeat(2)), r"bias has shape \(6,\); needed \(3,\), dimension 1 of x"),
    "a bias of two dimensions": (lambda x, b: (x, b[None]), r"bias has shape \(1, 3\); needed \(3,\)"),
    "a half bias": (lambda x, b: (x, b.half()), r"bias is float16 and x is float32; needed one dtype"),
    "a narrow bias of float64": (lambda x, b: (x.double(), b), r"bias is float32 and x is float64; needed one dtype"),
    "a bias elsewhere": (lambda x, b: (x, b.to("meta")), r"bias is on meta and x on (cpu|cuda:0); needed one device"),
}


@pytest.mark.parametrize("way", ["kernel", "gradient", "tangent"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, way: str, device: str) -> None:
    make, message = BAD[case]
    x, b = make(made(2, 3, 4, 4, device=device), made(3, device=device))
    if way == "gradient" and x.is_floating_point():
        x.requires_grad_()
    if way == "tangent":
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match=message):
            ops.bias_act(x, b)
    else:
        with pytest.raises(RuntimeError, match=message):
            ops.bias_act(x, b)


def test_bad_options_are_refused(device: str) -> None:
    x, b = made(2, 3, device=device), made(3, device=device)
    with pytest.raises(ValueError, match="act is 'gelu'; needed one of linear, relu"):
        ops.bias_act(x, b, act="gelu")
    with pytest.raises(ValueError, match="clamp is -1; needed a number that is not negative"):
        ops.bias_act(x, b, clamp=-1)
    with pytest.raises(ValueError, match="dim is 2 and x has 2 dimensions"):
        ops.bias_act(x, b, dim=2)
    with pytest.raises(RuntimeError, match="act is 9; needed 0 to 8"):
        RAW.bias_act(x, b, 1, 9, 0.0, 1.0, -1.0)
    with pytest.raises(RuntimeError, match=r"dim is 2 and x has shape \(2, 3\)"):
        RAW.bias_act(x, b, 2, 0, 0.0, 1.0, -1.0)


def test_a_backward_that_does_not_fit_is_refused(device: str) -> None:
    x, b = made(2, 3, device=device), made(3, device=device)
    rest = (1, 2, 0.2, 1.0, -1.0)
    for args, message in (
        ((x[:1], x, b, *rest, True, True), r"grad has shape \(1, 3\); needed \(2, 3\), as saved"),
        ((x.half(), x, b, *rest, True, True), "grad is float16 and saved is float32; needed one dtype"),
        ((x, None, b, *rest, False, True), "saved is None; needed a tensor unless act is 0"),
        ((x, x, b, 1, 3, 0.0, 1.0, -1.0, True, True), "of_output with act 3"),
        ((x, x, b, 1, 2, 0.2, -1.0, -1.0, True, True), "of_output with act 2, gain -1"),
        ((x, x, None, *rest, True, True), "bias_grad without a bias"),
    ):
        with pytest.raises(RuntimeError, match=message):
            RAW.bias_act_backward(*args)
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match=message):
            RAW.bias_act_backward(*args)


@pytest.mark.large
@pytest.mark.gpu
@pytest.mark.parametrize("act", ["lrelu", "swish"])
def test_more_elements_than_32_bits_count(act: str) -> None:
    x = torch.zeros(3, 2, (1 << 29) + 3, dtype=torch.float16, device="cuda")
    x[-1, -1, -5:] = 1.0
    b = torch.tensor([0.0, 1.0], dtype=torch.float16, device="cuda")
    y = ops.bias_act(x, b, act=act)
    assert torch.equal(y[-1, -1, -9:], ops.bias_act(x[-1:, :, -9:].contiguous(), b, act=act)[0, 1])
    assert torch.equal(y[0, 0, :9], torch.zeros(9, dtype=torch.float16, device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_rows_of_any_width_have_the_bias_of_their_channel(dtype: Any) -> None:
    """Short rows share vectors and tiles. A sum of two numbers is rounded once, as torch does."""
    for columns in (*range(1, 36), 63, 64, 65, 127, 128, 129, 511, 512, 513):
        x, b = torch.randn(3, 171, columns).to(dtype), torch.randn(171).to(dtype)
        assert torch.equal(ops.bias_act(x, b), x + b[:, None]), columns
        assert torch.equal(ops.bias_act(x[:1, :1]), x[:1, :1]), columns
        curved = ops.bias_act(x, b, act="tanh"), (x.double() + b.double()[:, None]).tanh()
        torch.testing.assert_close(curved[0].double(), curved[1], rtol=1e-2, atol=1e-2)
