"""Gates and factors in two tensors, alternating ones, and gates alone: values, gradients, layouts, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from precast import ops  # noqa: E402
from precast.ops.activations import QUICK, GatedKind, reference  # noqa: E402
from tests.ops.tensors import layouts  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
WIDTHS = [1, 7, 24, 111, 4099]
RAW = torch.ops.precast
F = torch.nn.functional


def swigluoai(gate: Any, up: Any, alpha: float = 1.702, limit: float = 7.0) -> Any:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


# What a torch user writes for each function of gates and factors.
PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "silu_and_mul": lambda gate, up: F.silu(gate) * up,
    "gelu_and_mul": lambda gate, up: F.gelu(gate) * up,
    "gelu_tanh_and_mul": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "fatrelu_and_mul": lambda gate, up: F.threshold(gate, 0.0, 0.0) * up,
    "swigluoai_and_mul": swigluoai,
}
ALONE: dict[str, Callable[[Any], Any]] = {
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
}
KINDS = {
    "silu_and_mul": GatedKind.SILU_AND_MUL,
    "gelu_and_mul": GatedKind.GELU_AND_MUL,
    "gelu_tanh_and_mul": GatedKind.GELU_TANH_AND_MUL,
    "fatrelu_and_mul": GatedKind.FATRELU_AND_MUL,
    "swigluoai_and_mul": GatedKind.SWIGLUOAI_AND_MUL,
    "gelu_quick": GatedKind.GELU_QUICK,
    "gelu_new": GatedKind.GELU_NEW,
}
EVERY = {**PAIRS, **ALONE}


def made(*shape: int, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * 2).to(device, dtype)


def inputs(name: str, *shape: int, dtype: Any = torch.float32, device: str = "cpu") -> list[Any]:
    return [made(*shape, dtype=dtype, device=device, seed=seed) for seed in range(2 if name in PAIRS else 1)]


def together(name: str, gate: Any, up: Any) -> Any:
    """One tensor with gates and factors, as the function takes it."""
    return torch.stack([gate, up], -1).flatten(-2) if name == "swigluoai_and_mul" else torch.cat([gate, up], -1)


def gradients(function: Callable[..., Any], tensors: list[Any], grad: Any) -> tuple[Any, ...]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    return torch.autograd.grad(function(*leaves), leaves, grad)


@pytest.fixture(params=EVERY)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients(
    name: str, dtype: Any, width: int, device: str, assert_accurate: Callable[..., None]
) -> None:
    tensors, grad = inputs(name, 5, width, dtype=dtype, device=device), made(5, width, dtype=dtype, seed=2).to(device)
    wide = [t.double().cpu() for t in tensors]
    y = getattr(ops, name)(*tensors)
    assert y.dtype == dtype and y.is_contiguous()
    assert_accurate(y, EVERY[name](*wide), EVERY[name](*tensors))
    ours = gradients(getattr(ops, name), tensors, grad)
    exact = gradients(EVERY[name], wide, grad.double().cpu())
    torchs = gradients(EVERY[name], tensors, grad)
    for index, (one, right, theirs) in enumerate(zip(ours, exact, torchs, strict=True)):
        assert one.dtype == dtype and one.is_contiguous()
        # A slope is a sum of terms of about 1, where itself it may be next to nothing.
        terms = torch.maximum(right.abs(), (grad.double().cpu() * (wide[1 - index] if wide[1:] else 1)).abs())
        assert_accurate(one, right, theirs, terms=terms)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 8, 24, 111])
def test_one_tensor_gives_the_same_bits(name: str, dtype: Any, width: int, device: str) -> None:
    gate, up = inputs(name, 3, width, dtype=dtype, device=device)
    grad = made(3, width, dtype=dtype, device=device, seed=2)
    function = getattr(ops, name)
    assert torch.equal(function(together(name, gate, up)), function(gate, up))
    (both,) = gradients(function, [together(name, gate, up)], grad)
    assert torch.equal(both, together(name, *gradients(function, [gate, up], grad)))


@pytest.mark.parametrize("width", [1, 16, 111])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_gives_the_numbers_of_the_plain_one(name: str, dtype: Any, width: int, device: str) -> None:
    plain = inputs(name, 4, 6, width, dtype=dtype, device=device)
    grad = made(4, 6, width, dtype=dtype, device=device, seed=2)
    function = getattr(ops, name)
    for layout, other in layouts(made, width, dtype, device).items():
        for index in range(len(plain)):
            given = [*plain[:index], other, *plain[index + 1 :]]
            copies = [t.clone(memory_format=torch.contiguous_format) for t in given]
            assert torch.equal(function(*given), function(*copies)), layout
            assert all(map(torch.equal, gradients(function, given, grad), gradients(function, copies, grad))), layout
        ours = gradients(function, plain, other)
        right = gradients(function, plain, other.clone(memory_format=torch.contiguous_format))
        assert all(map(torch.equal, ours, right)), layout


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 16, 111])
def test_any_layout_of_alternating_columns(dtype: Any, width: int, device: str) -> None:
    grad = made(4, 6, width, dtype=dtype, device=device, seed=2)
    for layout, x in layouts(made, 2 * width, dtype, device).items():
        plain = x.clone(memory_format=torch.contiguous_format)
        assert torch.equal(ops.swigluoai_and_mul(x), ops.swigluoai_and_mul(plain)), layout
        ours, right = (gradients(ops.swigluoai_and_mul, [t], grad)[0] for t in (x, plain))
        assert torch.equal(ours, right), layout


@pytest.mark.parametrize("shape", [(0,), (3,), (0, 4), (2, 0), (2, 1, 3, 4)], ids=str)
def test_any_shape(name: str, shape: tuple[int, ...], device: str) -> None:
    tensors = inputs(name, *shape, device=device)
    y = getattr(ops, name)(*tensors)
    assert y.shape == shape
    torch.testing.assert_close(y, EVERY[name](*tensors))
    for one, t in zip(gradients(getattr(ops, name), tensors, torch.ones_like(y)), tensors, strict=True):
        assert one.shape == t.shape


def test_parameters(device: str) -> None:
    gate, up = inputs("fatrelu_and_mul", 5, 33, device=device)
    right = F.threshold(gate, 0.7, 0.0) * up
    assert torch.equal(ops.fatrelu_and_mul(gate, up, threshold=0.7), right)
    assert torch.equal(ops.fatrelu_and_mul(torch.cat([gate, up], -1), threshold=0.7), right)
    right = swigluoai(gate, up, 0.5, 1.5)
    x = together("swigluoai_and_mul", gate, up)
    torch.testing.assert_close(ops.swigluoai_and_mul(gate, up, alpha=0.5, limit=1.5), right)
    torch.testing.assert_close(ops.swigluoai_and_mul(x, alpha=0.5, limit=1.5), right)


def test_the_edges_have_the_slopes_of_torch(device: str) -> None:
    """At the threshold and at the limit, beyond them, and for what is no number."""
    gate = torch.tensor([-8.0, -7.0, 0.0, 0.5, 7.0, 7.5, math.inf, math.nan], device=device)
    for name in ("fatrelu_and_mul", "swigluoai_and_mul"):
        for one, other in ((gate, torch.full_like(gate, 2.0)), (torch.full_like(gate, 2.0), gate)):
            ours, right = getattr(ops, name)(one, other), PAIRS[name](one, other)
            torch.testing.assert_close(ours, right, equal_nan=True)
            for mine, theirs in zip(
                gradients(getattr(ops, name), [one, other], torch.ones_like(gate)),
                gradients(PAIRS[name], [one, other], torch.ones_like(gate)),
                strict=True,
            ):
                finite = ~gate.isnan()
                torch.testing.assert_close(mine[finite], theirs[finite])


def test_only_one_of_two_needs_a_gradient(device: str) -> None:
    gate, up = inputs("silu_and_mul", 3, 8, device=device)
    for wanted in (gate, up):
        leaf = wanted.detach().requires_grad_()
        given = [leaf if t is wanted else t for t in (gate, up)]
        (ours,) = torch.autograd.grad(ops.silu_and_mul(*given).sum(), leaf)
        (right,) = torch.autograd.grad(PAIRS["silu_and_mul"](*given).sum(), leaf)
        torch.testing.assert_close(ours, right)


def test_mul_and_silu_takes_its_two_tensors_in_the_order_of_its_name(device: str) -> None:
    first, second = inputs("silu_and_mul", 3, 9, device=device)
    grad = made(3, 9, device=device, seed=2)
    kind = GatedKind.MUL_AND_SILU
    assert torch.equal(RAW.activation(first, second, kind), ops.silu_and_mul(second, first))
    ours = RAW.activation_backward(grad, first, second, kind)
    assert all(map(torch.equal, ours, gradients(ops.silu_and_mul, [second, first], grad)[::-1]))


def scalar(y: Any) -> Any:
    return (y.sin() * y).sum()


def second_order(f: Callable[..., Any], *tensors: Any) -> Any:
    leaves = [t.requires_grad_() for t in tensors]
    return torch.autograd.grad(scalar(torch.autograd.grad(scalar(f(*leaves)), leaves, create_graph=True)[0]), leaves)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "gradient of the gradient": second_order,
    "jvp": lambda f, *tensors: torch.func.jvp(f, tensors, tuple(torch.ones_like(t) for t in tensors)),
    "grad": lambda f, *tensors: torch.func.grad(lambda *t: scalar(f(*t)))(*tensors),
    "vmap": lambda f, *tensors: torch.vmap(f)(*tensors),
    "functionalize": lambda f, *tensors: torch.func.functionalize(f)(*tensors),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_and_transforms(name: str, transform: str, device: str) -> None:
    ours = TRANSFORMS[transform](getattr(ops, name), *inputs(name, 4, 8, device=device))
    right = TRANSFORMS[transform](EVERY[name], *inputs(name, 4, 8, device=device))
    torch.testing.assert_close(ours, right, rtol=1e-3, atol=1e-3)


def test_forward_mode(name: str, device: str) -> None:
    tensors = inputs(name, 4, 8, device=device)

    def push(function: Callable[..., Any]) -> Any:
        with forward_ad.dual_level():
            return tuple(forward_ad.unpack_dual(function(*(forward_ad.make_dual(t, t + 1) for t in tensors))))

    ours = push(getattr(ops, name))
    assert ours[1] is not None
    torch.testing.assert_close(ours, push(EVERY[name]), rtol=1e-4, atol=1e-4)


def test_the_reference_is_torchs(name: str) -> None:
    tensors = [t.double().requires_grad_() for t in inputs(name, 3, 5)]
    grad, kind = made(3, 5, seed=2).double().requires_grad_(), KINDS[name]
    options = (kind, 0.0 if name == "fatrelu_and_mul" else QUICK, 7.0)
    padded = (*tensors, *[None] * (2 - len(tensors)))
    torch.testing.assert_close(reference.activation(*padded, *options), EVERY[name](*tensors))
    right = torch.autograd.grad(EVERY[name](*tensors), tensors, grad)
    torch.testing.assert_close(reference.activation_backward(grad, *padded, *options)[: len(tensors)], right)

    def backward(grad: Any, *t: Any) -> Any:
        return reference.activation_backward(grad, *t, *padded[len(t) :], *options)[: len(t)]

    for function, given in (
        (lambda *t: reference.activation(*t, *padded[len(t) :], *options), tensors),
        (backward, (grad, *tensors)),
    ):
        assert torch.autograd.gradcheck(function, given, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, given)
    if name in PAIRS:
        x = together(name, *tensors).detach().requires_grad_()
        torch.testing.assert_close(reference.gated_activation(x, *options), EVERY[name](*tensors))
        torch.testing.assert_close(reference.gated_activation_backward(grad, x, *options), together(name, *right))


@pytest.mark.parametrize("raised", ["kernel", "traced"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.silu_and_mul(x, x[:2]), r"up has shape \(2, 8\); needed \(4, 8\), as x"),
        (lambda x: ops.silu_and_mul(x, x.half()), "up is float16 and x is float32; needed one dtype"),
        (lambda x: ops.silu_and_mul(x.double(), x), "x is float64; needed float32, float16 or bfloat16"),
        (lambda x: ops.gelu_quick(x.long()), "x is int64; needed float32, float16 or bfloat16"),
        (lambda x: ops.gelu_new(x[0, 0]), r"x has shape \(\); needed at least one dimension"),
        (lambda x: ops.swigluoai_and_mul(x[:, :7]), r"x has shape \(4, 7\); needed an even last dimension"),
        (lambda x: ops.swigluoai_and_mul(x, limit=-1.0), "limit is -1; needed a number that is not negative"),
        (lambda x: ops.swigluoai_and_mul(x, x, limit=math.nan), "limit is nan; needed a number"),
        (lambda x: RAW.gated_activation(x, 6), "kind is 6; needed 0 to 5"),
        (lambda x: RAW.activation(x, x, 8), "kind is 8; needed 0 to 7"),
        (lambda x: RAW.activation(x, None, 0), "kind is 0 and up is None; needed up for kinds 0 to 5"),
        (lambda x: RAW.activation(x, x, 7), "kind is 7 and up is a tensor; needed up for kinds 0 to 5"),
        (lambda x: RAW.activation_backward(x[:, :4], x, x, 0), r"grad has shape \(4, 4\); needed \(4, 8\), as x"),
    ],
)
def test_bad_input_is_one_clear_error(call: Callable[[Any], Any], message: str, raised: str, device: str) -> None:
    x = made(4, 8, device=device)
    if raised == "kernel":
        with pytest.raises(RuntimeError, match=message):
            call(x)
        return
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
        call(mode.from_tensor(x))


def test_two_devices_are_refused() -> None:
    x = made(4, 8)
    with pytest.raises(RuntimeError, match="up is on meta and x on cpu; needed one device"):
        ops.silu_and_mul(x, x.to("meta"))


GRAPH = """
    import torch
    import torch.nn.functional as F
    from precast import ops

    torch.manual_seed(0)
    x = torch.randn(6, 24, device={device!r})

    def block(x):
        y = ops.silu_and_mul(x.sin(), x) + ops.gelu_quick(x)
        return ops.swigluoai_and_mul(torch.stack([y, x], -1).flatten(-2)) * ops.fatrelu_and_mul(x, y, threshold=0.1)

    def right(x):
        y = F.silu(x.sin()) * x + x * torch.sigmoid(1.702 * x)
        gate = y.clamp(max=7.0)
        return gate * torch.sigmoid(1.702 * gate) * (x.clamp(-7, 7) + 1) * (F.threshold(x, 0.1, 0.0) * y)

    def both(function, x):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        return y, torch.autograd.grad(y.sin().sum(), leaf)[0]
"""


@pytest.mark.parametrize(
    ("backend", "dynamic"), [("aot_eager", True), pytest.param("inductor", None, marks=pytest.mark.long)]
)
def test_compile_in_a_fresh_process(
    backend: str, dynamic: bool | None, device: str, run_child: Callable[[str], str]
) -> None:
    source = (
        GRAPH
        + """
    compiled = torch.compile(block, backend={backend!r}, fullgraph=True, dynamic={dynamic})
    for part in (x, x[:3]):
        torch.testing.assert_close(both(compiled, part), both(right, part), rtol=1e-4, atol=1e-5)
    print("the same")
    """
    )
    assert "the same" in run_child(source.format(backend=backend, dynamic=dynamic, device=device))


@pytest.mark.gpu
def test_capture_in_a_cuda_graph(name: str) -> None:
    tensors = inputs(name, 64, 1024, device="cuda")
    expected = getattr(ops, name)(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = getattr(ops, name)(*tensors)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"])
def test_two_tensors_give_the_bits_of_torch(name: str, dtype: Any) -> None:
    gate, up = inputs(name, 64, 1024, dtype=dtype, device="cuda")
    if dtype != torch.float32:
        assert torch.equal(getattr(ops, name)(gate, up), PAIRS[name](gate, up))
