"""Derivatives of every kind: each is right, or one clear error, through the public functions and the raw ops alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from precast import ops  # noqa: E402
from precast.ops.norm import CASTINGS  # noqa: E402
from precast.ops.norm import reference as norm_reference  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

EPS = 1e-6
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAW = torch.ops.precast


def norm_pairs(casting: str) -> dict[str, tuple[Callable[..., Any], Callable[..., Any], int]]:
    """Name -> (ours, the reference, how many (4, 8) inputs come before the weight); results are tuples."""
    code = CASTINGS[casting]

    def exact_norm(x: Any, weight: Any) -> Any:
        return (norm_reference.rms_norm(x, weight, EPS, code),)

    def exact_fused(x: Any, residual: Any, weight: Any) -> Any:
        return norm_reference.fused_add_rms_norm(x, residual, weight, EPS, code)

    def exact_layer(x: Any, biases: Any, weight: Any) -> Any:
        return (norm_reference.layer_norm(x, weight, biases.reshape(-1, 8)[0], EPS),)

    return {
        "rms_norm": (lambda x, w: (ops.rms_norm(x, w, EPS, casting=casting),), exact_norm, 1),
        "raw rms_norm": (lambda x, w: (RAW.rms_norm(x, w, EPS, code),), exact_norm, 1),
        "fused_add_rms_norm": (lambda x, r, w: ops.fused_add_rms_norm(x, r, w, EPS, casting=casting), exact_fused, 2),
        "layer_norm": (lambda x, b, w: (ops.layer_norm(x, w, b.reshape(-1, 8)[0], EPS),), exact_layer, 2),
        "raw layer_norm": (lambda x, b, w: (RAW.layer_norm(x, w, b.reshape(-1, 8)[0], EPS),), exact_layer, 2),
        "raw fused_add_rms_norm": (lambda x, r, w: RAW.fused_add_rms_norm(x, r, w, EPS, code), exact_fused, 2),
    }


@pytest.fixture(params=list(norm_pairs("none")))
def pair(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], Callable[..., Any], int]:
    return norm_pairs("none")[request.param]


def inputs(count: int, device: str, *, grad: bool = False) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 8)] * count + [(8,)]
    return tuple(torch.randn(*s, generator=generator).to(device).requires_grad_(grad) for s in shapes)


def scalar(results: tuple[Any, ...]) -> Any:
    """Something whose second derivatives are not zero, and differ between the results."""
    return sum((index + 1) * (result.sin() * result).sum() for index, result in enumerate(results))


def assert_close(ours: Any, exact: Any) -> None:
    """Float32 against float32: what is looked for is a wrong formula; the rounding has tests of its own."""
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def added_up(grad: Any, x: Any, weight: Any, casting: str) -> tuple[Any, Any]:
    """For each element of the two gradients, the sizes of the terms that it is the sum of."""
    grad, x, weight = (t.detach().double().cpu() for t in (grad, x, weight))
    scaled = (grad * (1 + weight if casting == "gemma" else weight)).abs()
    rrms = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    normal = (x * rrms).abs()
    return rrms * (scaled + normal * (scaled * normal).mean(-1, keepdim=True)), (grad.abs() * normal).sum(0)


@pytest.mark.parametrize("hidden", [1, 7, 769, 5125, 8194])
@pytest.mark.parametrize("casting", ["none", "llama", "gemma"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward_against_float64(
    dtype: Any, casting: str, hidden: int, device: str, assert_accurate: Callable[..., None]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(33, hidden, generator=generator).to(device, dtype) for _ in range(2))
    weight = torch.randn(hidden, generator=generator).to(device, dtype)
    exact = norm_reference.rms_norm_backward(*(t.double().cpu() for t in (grad, x, weight)), EPS, CASTINGS[casting])

    def gradients(function: Callable[..., Any]) -> Any:
        leaves = [t.detach().requires_grad_() for t in (x, weight)]
        return torch.autograd.grad(function(*leaves), leaves, grad)

    def by_torch(x: Any, weight: Any) -> Any:
        return torch.nn.functional.rms_norm(x, (hidden,), 1 + weight if casting == "gemma" else weight, EPS)

    ours = gradients(lambda x, weight: ops.rms_norm(x, weight, EPS, casting=casting))
    assert [t.dtype for t in ours] == [dtype, dtype]
    terms = added_up(grad, x, weight, casting)
    for one, right, torchs, size in zip(ours, exact, gradients(by_torch), terms, strict=True):
        assert_accurate(one, right, torchs, terms=size)


@pytest.mark.parametrize("casting", ["none", "llama", "gemma"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_backward_against_float64(
    dtype: Any, casting: str, device: str, assert_accurate: Callable[..., None]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, residual, grad_y, grad_sum = (torch.randn(33, 769, generator=generator).to(device, dtype) for _ in range(4))
    weight = torch.randn(769, generator=generator).to(device, dtype)
    leaves = [t.requires_grad_() for t in (x, residual, weight)]
    y, total = ops.fused_add_rms_norm(*leaves, EPS, casting=casting)
    ours = torch.autograd.grad((y, total), leaves, (grad_y, grad_sum))
    exact = norm_reference.fused_add_rms_norm_backward(
        *(t.detach().double().cpu() for t in (grad_y, grad_sum, total, weight)), EPS, CASTINGS[casting]
    )
    assert torch.equal(ours[0], ours[1])
    terms = added_up(grad_y, total, weight, casting)
    assert_accurate(ours[0], exact[0], terms=terms[0] + grad_sum.double().cpu().abs())
    assert_accurate(ours[2], exact[1], terms=terms[1])


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_backward_of_any_number_of_rows(rows: int, device: str) -> None:
    x = torch.randn(rows, 24, device=device, requires_grad=True)
    weight = torch.randn(24, device=device, requires_grad=True)
    ours = torch.autograd.grad(ops.rms_norm(x, weight).sin().sum(), (x, weight))
    exact = torch.autograd.grad(norm_reference.rms_norm(x, weight, EPS, 0).sin().sum(), (x, weight))
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-4)


def test_backward_of_gradients_that_are_not_contiguous(device: str) -> None:
    x, weight = inputs(1, device, grad=True)
    for make in (lambda y: y.t().sin().sum(), lambda y: y.sum(), lambda y: y[:, ::2].sin().sum()):
        ours = torch.autograd.grad(make(ops.rms_norm(x, weight)), (x, weight))
        assert_close(ours, torch.autograd.grad(make(norm_reference.rms_norm(x, weight, EPS, 0)), (x, weight)))


@pytest.mark.parametrize("only", [0, 1])
def test_backward_through_one_of_two_results(only: int, device: str) -> None:
    leaves = inputs(2, device, grad=True)
    ours = torch.autograd.grad(scalar(ops.fused_add_rms_norm(*leaves)[only : only + 1]), leaves, allow_unused=True)
    exact = scalar(norm_reference.fused_add_rms_norm(*leaves, EPS, 0)[only : only + 1])
    for one, right in zip(ours, torch.autograd.grad(exact, leaves, materialize_grads=True), strict=True):
        assert_close(one, right)


@pytest.mark.parametrize("wanted", ["x", "weight"])
def test_only_one_input_requires_grad(wanted: str, device: str) -> None:
    x, weight = inputs(1, device)
    leaf = {"x": x, "weight": weight}[wanted].requires_grad_()
    ours = torch.autograd.grad(scalar((ops.rms_norm(x, weight),)), leaf)
    assert_close(ours, torch.autograd.grad(scalar((norm_reference.rms_norm(x, weight, EPS, 0),)), leaf))


def test_gradients_in_another_thread(pair: Any, device: str) -> None:
    """Backward runs in autograd's own thread on a GPU; on the CPU, in whatever thread asks."""
    from concurrent.futures import ThreadPoolExecutor

    function, exact, count = pair
    leaves = inputs(count, device, grad=True)
    with ThreadPoolExecutor(1) as pool:
        ours = pool.submit(lambda: torch.autograd.grad(scalar(function(*leaves)), leaves)).result()
    assert_close(ours, torch.autograd.grad(scalar(exact(*leaves)), leaves))


def test_gradient(pair: Any, device: str) -> None:
    function, exact, count = pair
    leaves = inputs(count, device, grad=True)
    assert_close(
        torch.autograd.grad(scalar(function(*leaves)), leaves), torch.autograd.grad(scalar(exact(*leaves)), leaves)
    )


def test_gradient_of_the_gradient(pair: Any, device: str) -> None:
    function, exact, count = pair
    leaves = inputs(count, device, grad=True)

    def second(f: Callable[..., Any]) -> Any:
        first = torch.autograd.grad(scalar(f(*leaves)), leaves, create_graph=True)
        return torch.autograd.grad(scalar(first), leaves)

    assert_close(second(function), second(exact))


@pytest.mark.parametrize("grad_mode", [True, False])
def test_forward_mode(pair: Any, grad_mode: bool, device: str) -> None:
    function, exact, count = pair
    primals = inputs(count, device)
    tangents = tuple(torch.linspace(-1, 1, p.numel(), device=device).view_as(p) for p in primals)

    def push(f: Callable[..., Any]) -> Any:
        with forward_ad.dual_level(), torch.set_grad_enabled(grad_mode):
            duals = [forward_ad.make_dual(p, t) for p, t in zip(primals, tangents, strict=True)]
            return [tuple(forward_ad.unpack_dual(result)) for result in f(*duals)]

    ours, right = push(function), push(exact)
    assert all(tangent is not None for _, tangent in ours)
    assert_close(ours, right)


def test_forward_over_reverse(pair: Any, device: str) -> None:
    function, exact, count = pair
    primals = inputs(count, device, grad=True)

    def push(f: Callable[..., Any]) -> Any:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(p, torch.ones_like(p)) for p in primals]
            gradients = torch.autograd.grad(scalar(f(*duals)), primals)
            return [forward_ad.unpack_dual(g).tangent for g in gradients]

    ours = push(function)
    assert all(tangent is not None for tangent in ours)
    assert_close(ours, push(exact))


def test_a_tangent_that_arrives_between_forward_and_backward(device: str) -> None:
    x, weight = inputs(1, device, grad=True)

    def push(f: Callable[..., Any]) -> Any:
        y = f(x, weight)
        with forward_ad.dual_level():
            grad = forward_ad.make_dual(torch.ones_like(y), torch.ones_like(y) * 2)
            return [tuple(forward_ad.unpack_dual(g)) for g in torch.autograd.grad(y, (x, weight), grad)]

    assert_close(push(ops.rms_norm), push(lambda x, w: norm_reference.rms_norm(x, w, EPS, 0)))


TRANSFORMS = {
    "jvp": lambda f, args: torch.func.jvp(f, args, tuple(torch.ones_like(a) for a in args))[1],
    "grad": lambda f, args: torch.func.grad(lambda *a: scalar(f(*a)), argnums=tuple(range(len(args))))(*args),
    "jacrev": lambda f, args: torch.func.jacrev(lambda *a: f(*a)[0], argnums=len(args) - 1)(*args),
    "jacfwd": lambda f, args: torch.func.jacfwd(lambda *a: f(*a)[0], argnums=len(args) - 1)(*args),
    "hessian": lambda f, args: torch.func.hessian(lambda *a: scalar(f(*a)), argnums=len(args) - 1)(*args),
    "vmap over rows": lambda f, args: torch.vmap(f, in_dims=(*[0] * (len(args) - 1), None))(*args),
    "vmap over columns of rows": lambda f, args: torch.vmap(f, in_dims=(*[1] * (len(args) - 1), None))(
        *(a.expand(3, *a.shape).transpose(0, 1) for a in args[:-1]), args[-1]
    ),
    "vmap over weights": lambda f, args: torch.vmap(f, in_dims=(*[None] * (len(args) - 1), 0))(
        *args[:-1], torch.stack([args[-1], args[-1] * 2])
    ),
    "per-sample gradients": lambda f, args: torch.vmap(
        torch.func.grad(lambda *a: scalar(f(*a)), argnums=len(args) - 1), in_dims=(*[0] * (len(args) - 1), None)
    )(*args),
    "functionalize": lambda f, args: torch.func.functionalize(f)(*args),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transform(transform: str, pair: Any, device: str) -> None:
    function, exact, count = pair
    args = inputs(count, device)
    ours = TRANSFORMS[transform](function, args)
    assert_close(ours, TRANSFORMS[transform](exact, args))


def test_transforms_of_the_in_place_op(device: str) -> None:
    x, residual, weight = inputs(2, device)

    def in_place(x: Any, residual: Any, weight: Any) -> Any:
        return ops.fused_add_rms_norm_(x.clone(), residual.clone(), weight)

    def exact(x: Any, residual: Any, weight: Any) -> Any:
        return norm_reference.fused_add_rms_norm(x, residual, weight, EPS, 0)

    for name in ("jvp", "grad", "vmap over rows", "functionalize"):
        assert_close(TRANSFORMS[name](in_place, (x, residual, weight)), TRANSFORMS[name](exact, (x, residual, weight)))


@pytest.mark.parametrize("raw", [True, False])
def test_in_place_refuses_a_gradient(raw: bool, device: str) -> None:
    x, residual, weight = inputs(2, device)
    before = x.clone()
    weight.requires_grad_()
    with pytest.raises(RuntimeError, match=r"a gradient is wanted .* needed precast.ops.fused_add_rms_norm"):
        RAW.fused_add_rms_norm_(x, residual, weight, EPS, 0) if raw else ops.fused_add_rms_norm_(x, residual, weight)
    assert torch.equal(x, before)
    with torch.no_grad():
        ops.fused_add_rms_norm_(x, residual, weight)
    assert not torch.equal(x, before)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("which", ["x", "residual"])
def test_backward_through_a_tensor_written_over_raises(which: str, raw: bool, device: str) -> None:
    x, residual, weight = inputs(2, device)
    leaf = torch.ones(4, 8, device=device, requires_grad=True)
    saved = {"x": x, "residual": residual}[which]
    product = leaf * saved  # keeps `saved` for its backward
    with torch.no_grad():
        if raw:
            RAW.fused_add_rms_norm_(x, residual, weight, EPS, 0)
        else:
            ops.fused_add_rms_norm_(x, residual, weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_writing_over_what_we_saved_raises(device: str) -> None:
    x, weight = inputs(1, device, grad=True)
    y = ops.rms_norm(x * 1, weight)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_mode(device: str) -> None:
    x, residual, weight = inputs(2, device, grad=True)
    with torch.inference_mode():
        y = ops.rms_norm(x, weight)
        assert y.is_inference()
        ops.fused_add_rms_norm_(y, y.clone(), weight)
        both = ops.fused_add_rms_norm(x, residual, weight)
    assert all(t.is_inference() for t in both)
    torch.testing.assert_close(ops.rms_norm(both[1], weight.detach()), both[0])


def test_checkpointing(device: str) -> None:
    from torch.utils.checkpoint import checkpoint

    leaves = inputs(1, device, grad=True)
    ours = torch.autograd.grad(scalar((checkpoint(ops.rms_norm, *leaves, use_reentrant=False),)), leaves)
    assert_close(ours, torch.autograd.grad(scalar((ops.rms_norm(*leaves),)), leaves))
