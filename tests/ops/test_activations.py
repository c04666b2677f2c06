"""The gated activations: values, gradients, layouts and transforms, and the words they refuse bad input with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

import precast  # noqa: E402
from precast import ops  # noqa: E402
from precast.ops.activations import GatedKind, reference  # noqa: E402
from tests.ops.tensors import layouts  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "mul_and_silu"]  # in the order of the kinds
WIDTHS = [1, 7, 9, 111, 769, 1024, 5125, 8194, 100_003]
RAW = torch.ops.precast


def by_torch(x: Any, name: str) -> Any:
    """What a torch user writes."""
    first, second = x.chunk(2, -1)
    if name == "mul_and_silu":
        return first * torch.nn.functional.silu(second)
    if name == "silu_and_mul":
        return torch.nn.functional.silu(first) * second
    return torch.nn.functional.gelu(first, approximate="tanh" if "tanh" in name else "none") * second


def made(*shape: int, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * 2).to(device, dtype)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(name: str, dtype: Any, width: int, device: str, assert_accurate: Callable[..., None]) -> None:
    x = made(5, 2 * width, dtype=dtype, device=device)
    y = getattr(ops, name)(x)
    torchs = by_torch(x, name)
    assert y.dtype == dtype
    assert y.is_contiguous()
    assert_accurate(y, by_torch(x.double().cpu(), name), torchs)
    if device == "cuda" and dtype != torch.float32:
        assert torch.equal(y, torchs)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients(name: str, dtype: Any, width: int, device: str, assert_accurate: Callable[..., None]) -> None:
    x, grad = made(5, 2 * width, dtype=dtype, device=device), made(5, width, dtype=dtype, device=device, seed=1)

    def gradient(function: Callable[..., Any], x: Any, grad: Any) -> Any:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(function(leaf), leaf, grad)[0]

    ours = gradient(getattr(ops, name), x, grad)
    exact = gradient(lambda x: by_torch(x, name), x.double().cpu(), grad.double().cpu())
    assert ours.dtype == dtype
    # A slope is a sum of terms of about 1, where itself it may be next to nothing.
    wide = grad.double().cpu().abs()
    terms = (wide * x.double().cpu().abs().unflatten(-1, (2, width)).flip(-2).movedim(-2, 0)).movedim(0, -2)
    terms = torch.maximum(exact.abs(), terms.flatten(-2))
    assert_accurate(ours, exact, gradient(lambda x: by_torch(x, name), x, grad), terms=terms)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (2, 1, 3, 4)], ids=str)
@pytest.mark.parametrize("width", [0, 1, 24])
def test_any_leading_shape(
    name: str, shape: tuple[int, ...], width: int, device: str, assert_accurate: Callable[..., None]
) -> None:
    x = made(*shape, 2 * width, device=device).requires_grad_()
    y = getattr(ops, name)(x)
    assert y.shape == (*shape, width)
    assert_accurate(y, by_torch(x.detach().double().cpu(), name), by_torch(x, name))
    (grad_x,) = torch.autograd.grad(y.sum(), x)
    assert grad_x.shape == x.shape


@pytest.mark.parametrize("width", [1, 16, 111])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_gives_the_numbers_of_the_plain_one(name: str, dtype: Any, width: int, device: str) -> None:
    """Bit for bit, on a GPU as well: nothing is added up, so all kernels compute an element alike."""
    kind = NAMES.index(name)
    grad = made(4, 6, width, dtype=dtype, device=device, seed=1)
    for layout, x in layouts(made, 2 * width, dtype, device).items():
        plain = x.clone(memory_format=torch.contiguous_format)
        assert torch.equal(getattr(ops, name)(x), getattr(ops, name)(plain)), layout
        ours = RAW.gated_activation_backward(grad, x, kind)
        assert torch.equal(ours, RAW.gated_activation_backward(grad, plain, kind)), layout
    x = made(4, 6, 2 * width, dtype=dtype, device=device)
    for layout, grad in layouts(made, width, dtype, device).items():
        plain = grad.clone(memory_format=torch.contiguous_format)
        ours = RAW.gated_activation_backward(grad, x, kind)
        assert torch.equal(ours, RAW.gated_activation_backward(plain, x, kind)), layout


def test_the_halves_of_mul_and_silu_are_exchanged(device: str) -> None:
    x = made(3, 48, dtype=torch.bfloat16, device=device)
    exchanged = torch.cat([x[:, 24:], x[:, :24]], -1)
    assert torch.equal(ops.mul_and_silu(x), ops.silu_and_mul(exchanged))


def test_every_number_of_bfloat16(name: str, device: str, assert_accurate: Callable[..., None]) -> None:
    """All finite gates: of the same sign as the exact result, near it in the tails, zero where it is too small."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    gate = bits[bits.isfinite()].to(device)
    halves = [gate, torch.ones_like(gate)]
    x = torch.cat(halves[::-1] if name == "mul_and_silu" else halves)
    assert_accurate(getattr(ops, name)(x), by_torch(x.double().cpu(), name), by_torch(x, name))
    grad_x = RAW.gated_activation_backward(torch.ones_like(gate), x, NAMES.index(name))
    assert bool(grad_x.isfinite().all())


def test_special_values(name: str, device: str) -> None:
    infinity, nan = float("inf"), float("nan")
    for dtype in DTYPES:
        gate = torch.tensor([nan, infinity, -infinity, 1.0, 2.0, 0.0], device=device, dtype=dtype)
        factor = torch.tensor([1.0, 1.0, 1.0, nan, infinity, infinity], device=device, dtype=dtype)
        halves = [gate, factor]
        y = getattr(ops, name)(torch.cat(halves[::-1] if name == "mul_and_silu" else halves))
        assert torch.equal(y.isnan().cpu(), torch.tensor([True, False, True, True, False, True])), dtype
        assert y[1] == infinity and y[4] == infinity


@pytest.mark.parametrize("kind", range(8))
def test_slopes_at_the_largest_numbers(kind: int, device: str) -> None:
    """0 or 1, by the kernels and by the formula that further gradients are made of."""
    gate = torch.tensor([3e38, 1e38, 1e30, 1e3, -1e3, -1e30, -1e38, -3e38], device=device)
    one = torch.ones_like(gate)
    factor = {GatedKind.SWIGLUOAI_AND_MUL: one - 1, GatedKind.GELU_QUICK: None, GatedKind.GELU_NEW: None}.get(kind, one)
    swapped = kind == GatedKind.MUL_AND_SILU
    for gradients in (RAW.activation_backward, reference.activation_backward):
        found = gradients(one, *((factor, gate) if swapped else (gate, factor)), kind, 0.5, 3.4e38)
        assert torch.equal(found[swapped].cpu(), torch.tensor([1.0] * 4 + [0.0] * 4)), gradients


def test_the_same_numbers_with_any_number_of_threads() -> None:
    x, grad = made(3, 40_002), made(3, 20_001)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append((ops.gelu_and_mul(x), RAW.gated_activation_backward(grad, x, 1)))
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, results[0], other) for other in results[1:])


def scalar(y: Any) -> Any:
    return (y.sin() * y).sum()


TRANSFORMS = {
    "gradient": lambda f, x: torch.autograd.grad(scalar(f(x.requires_grad_())), x),
    "gradient of the gradient": lambda f, x: torch.autograd.grad(
        scalar(torch.autograd.grad(scalar(f(x.requires_grad_())), x, create_graph=True)[0]), x
    ),
    "gradient of an expanded one": lambda f, x: torch.autograd.grad(f(x.requires_grad_()).sum(), x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "grad": lambda f, x: torch.func.grad(lambda x: scalar(f(x)))(x),
    "hessian": lambda f, x: torch.func.hessian(lambda x: scalar(f(x)))(x),
    "vmap": lambda f, x: torch.vmap(f)(x),
    "per-sample gradients": lambda f, x: torch.vmap(torch.func.grad(lambda x: scalar(f(x))))(x),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
}


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_and_transforms(name: str, transform: str, raw: bool, device: str) -> None:
    kind = NAMES.index(name)
    function = (lambda x: RAW.gated_activation(x, kind)) if raw else getattr(ops, name)
    ours = TRANSFORMS[transform](function, made(4, 8, device=device))
    right = TRANSFORMS[transform](lambda x: by_torch(x, name), made(4, 8, device=device))
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grad_mode", [True, False])
def test_forward_mode(name: str, grad_mode: bool, device: str) -> None:
    x, tangent = made(4, 8, device=device), made(4, 8, device=device, seed=1)

    def push(function: Callable[..., Any]) -> Any:
        with forward_ad.dual_level(), torch.set_grad_enabled(grad_mode):
            return tuple(forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent))))

    ours = push(getattr(ops, name))
    assert ours[1] is not None
    torch.testing.assert_close(ours, push(lambda x: by_torch(x, name)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", range(4))
def test_the_reference_is_torchs(kind: int) -> None:
    x, grad = made(3, 10).double().requires_grad_(), made(3, 5, seed=1).double().requires_grad_()
    torch.testing.assert_close(reference.gated_activation(x, kind), by_torch(x, NAMES[kind]))
    right = torch.autograd.grad(by_torch(x, NAMES[kind]), x, grad)[0]
    torch.testing.assert_close(reference.gated_activation_backward(grad, x, kind), right)
    for function, inputs in (
        (lambda x: reference.gated_activation(x, kind), (x,)),
        (lambda g, x: reference.gated_activation_backward(g, x, kind), (grad, x)),
    ):
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, inputs)


BAD = {
    "float64": (lambda x: x.double(), r"x is float64; needed float32, float16 or bfloat16"),
    "integers": (lambda x: x.long(), r"x is int64; needed float32, float16 or bfloat16"),
    "no dimension": (lambda x: x[0, 0], r"x has shape \(\); needed at least one dimension"),
    "an odd width": (lambda x: x[:, :7], r"x has shape \(4, 7\); needed an even last dimension"),
}


@pytest.mark.parametrize("way", ["kernel", "gradient", "traced", "transformed", "tangent"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(name: str, case: str, way: str, device: str) -> None:
    make, message = BAD[case]
    function, x = getattr(ops, name), make(made(4, 8, device=device))
    if way == "gradient" and x.is_floating_point():
        x.requires_grad_()
    if way == "traced":
        with torch._subclasses.FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
            function(mode.from_tensor(x))
    elif way == "transformed":
        with pytest.raises(RuntimeError, match=message):
            torch.func.functionalize(function)(x)
    elif way == "tangent":
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match=message):
            function(x)
    else:
        with pytest.raises(RuntimeError, match=message):
            function(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g: g[:, :3], r"grad has shape \(4, 3\) and x has shape \(4, 8\); needed the shape of x with half"),
        (lambda g: g[:2], r"grad has shape \(2, 4\) and x has shape \(4, 8\)"),
        (lambda g: g[0], r"grad has shape \(4,\) and x has shape \(4, 8\)"),
        (lambda g: g.half(), r"grad is float16 and x is float32; needed one dtype"),
        (lambda g: g.to("meta"), r"grad is on meta and x on (cpu|cuda:0); needed one device"),
    ],
    ids=["narrower", "fewer rows", "a row", "half", "meta"],
)
def test_a_gradient_that_does_not_fit_is_refused(make: Callable[[Any], Any], message: str, device: str) -> None:
    x, grad = made(4, 8, device=device), make(made(4, 4, device=device))
    with pytest.raises(RuntimeError, match=message):
        RAW.gated_activation_backward(grad, x, 0)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match=message):
        RAW.gated_activation_backward(grad, x, 0)


def test_an_unknown_kind_is_refused(device: str) -> None:
    x = made(4, 8, device=device)
    for kind in (-1, 6):
        with pytest.raises(RuntimeError, match=f"kind is {kind}; needed 0 to 5"):
            RAW.gated_activation(x, kind)
        with pytest.raises(RuntimeError, match=f"kind is {kind}; needed 0 to 5"):
            RAW.gated_activation_backward(x[:, :4], x, kind)


def test_load_says_where_the_kernels_come_from(device: str) -> None:
    loaded = precast.load("gated_activation", device)
    assert loaded.family == "activations"
    assert loaded.device == device


GRAPH = """
    import torch
    import torch.nn.functional as F
    from precast import ops

    torch.manual_seed(0)
    x = torch.randn(6, 48, device={device!r})

    def block(x):
        y = ops.silu_and_mul(x.sin()) + ops.mul_and_silu(x)
        return ops.gelu_and_mul(torch.cat([y, y.cos()], -1)) * ops.gelu_tanh_and_mul(x)

    def right(x):
        first, second = x.sin().chunk(2, -1)
        y = F.silu(first) * second + x[:, :24] * F.silu(x[:, 24:])
        return F.gelu(y) * y.cos() * (F.gelu(x[:, :24], approximate="tanh") * x[:, 24:])

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
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), right(x), rtol=1e-4, atol=1e-5)
    print("the same")
    """
    )
    assert "the same" in run_child(source.format(backend=backend, dynamic=dynamic, device=device))


def test_export_keeps_the_op_at_any_number_of_rows(device: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return ops.silu_and_mul(x)

    x = made(6, 48, device=device)
    for strict in (True, False):
        program = torch.export.export(
            Module(), (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},), strict=strict
        )
        assert RAW.gated_activation.default in {node.target for node in program.graph.nodes}
        assert torch.equal(program.module()(x[:3]), ops.silu_and_mul(x[:3]))


@pytest.mark.large
@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1], ids=["vectors", "single elements"])
def test_more_elements_than_32_bits_count(offset: int) -> None:
    """One row wider than a launch, and more rows than one launch takes, where each element is a unit of its own."""
    for shape in ((2, (1 << 31) + 64), (1 << 21, 1536)):
        room = torch.empty(shape[0] * shape[1] + offset, dtype=torch.bfloat16, device="cuda").normal_()
        x = room[offset:].view(shape)
        half = shape[1] // 2
        y = ops.silu_and_mul(x)
        grad_x = RAW.gated_activation_backward(y, x, 0)
        for row in {0, shape[0] // 2, shape[0] - 1}:
            part = x[row].clone()
            assert torch.equal(y[row], by_torch(part, "silu_and_mul"))
            assert torch.equal(grad_x[row], RAW.gated_activation_backward(y[row].clone(), part, 0))
        assert y.shape == (shape[0], half)
        del room, x, y, grad_x
        torch.cuda.empty_cache()


@pytest.mark.gpu
def test_capture_in_a_cuda_graph(name: str) -> None:
    x = made(64, 1024, device="cuda")
    expected = getattr(ops, name)(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = getattr(ops, name)(x)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
