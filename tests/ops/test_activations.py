"""The activations, of one tensor with gates and factors, of two, and of gates alone: values, gradients, layouts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from precast import ops  # noqa: E402
from precast.ops.activations import QUICK, GatedKind, reference  # noqa: E402
from tests.ops.tensors import assert_captured, assert_same_with_any_number_of_threads, layouts  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
WIDTHS = [1, 7, 9, 24, 111, 769, 1024, 5125, 8194, 100_003]
RAW = torch.ops.precast
F = torch.nn.functional


def swigluoai(gate: Any, up: Any, alpha: float = 1.702, limit: float = 7.0) -> Any:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


# What a torch user writes for each function.
FORMULAS: dict[str, Callable[..., Any]] = {
    "silu_and_mul": lambda gate, up: F.silu(gate) * up,
    "gelu_and_mul": lambda gate, up: F.gelu(gate) * up,
    "gelu_tanh_and_mul": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "mul_and_silu": lambda first, second: first * F.silu(second),
    "fatrelu_and_mul": lambda gate, up: F.threshold(gate, 0.0, 0.0) * up,
    "swigluoai_and_mul": swigluoai,
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
}
NAMES = ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "mul_and_silu"]  # in half precision, torch's bits


def made(*shape: int, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * 2).to(device, dtype)


@dataclass(frozen=True)
class Case:
    """A function and the number of tensors it is given: 1 with gates and factors in it, 2, or 0 for gates alone."""

    name: str
    tensors: int
    raw: bool = False  # the op behind the function

    def __str__(self) -> str:
        return f"{self.name} of {self.tensors}{' by the op' * self.raw}"

    def __call__(self, *tensors: Any) -> Any:
        if not self.raw:
            return getattr(ops, self.name)(*tensors)
        return RAW.gated_activation(*tensors, self.kind) if self.tensors == 1 else RAW.activation(*tensors, self.kind)

    @property
    def kind(self) -> int:
        return getattr(GatedKind, self.name.upper())

    def right(self, *tensors: Any) -> Any:
        return FORMULAS[self.name](*self.parts(*tensors))

    def parts(self, *tensors: Any) -> tuple[Any, ...]:
        """What the formula takes."""
        if self.tensors != 1:
            return tensors
        (x,) = tensors
        return (x[..., ::2], x[..., 1::2]) if self.name == "swigluoai_and_mul" else x.chunk(2, -1)

    def joined(self, *parts: Any) -> tuple[Any, ...]:
        """The other way round."""
        if self.tensors != 1:
            return parts
        alternating = self.name == "swigluoai_and_mul"
        return (torch.stack(parts, -1).flatten(-2) if alternating else torch.cat(parts, -1),)

    def inputs(self, *shape: int, dtype: Any = torch.float32, device: str = "cpu") -> tuple[Any, ...]:
        """Tensors for a result of this shape."""
        return self.joined(*(made(*shape, dtype=dtype, device=device, seed=n) for n in range(2 if self.tensors else 1)))


ONE = [Case(name, 1) for name in FORMULAS if name.endswith(("_mul", "_silu"))]
TWO = [Case(case.name, 2) for case in ONE if case.name != "mul_and_silu"]
ALONE = [Case("gelu_quick", 0), Case("gelu_new", 0)]
BY_OP = [Case(name, 1, raw=True) for name in NAMES] + [Case("silu_and_mul", 2, raw=True)]


@pytest.fixture(params=[*ONE, *TWO, *ALONE], ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def gradients(function: Callable[..., Any], tensors: Any, grad: Any) -> tuple[Any, ...]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    return torch.autograd.grad(function(*leaves), leaves, grad)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients(
    case: Case, dtype: Any, width: int, device: str, assert_accurate: Callable[..., None]
) -> None:
    tensors, grad = case.inputs(5, width, dtype=dtype, device=device), made(5, width, dtype=dtype, seed=2).to(device)
    wide, wide_grad = [t.double().cpu() for t in tensors], grad.double().cpu()
    y, torchs = case(*tensors), case.right(*tensors)
    assert y.dtype == dtype and y.is_contiguous()
    assert_accurate(y, case.right(*wide), torchs)
    if device == "cuda" and dtype != torch.float32 and case.name in NAMES:
        assert torch.equal(y, torchs)
    slopes = [gradients(f, t, g) for f, t, g in ((case.right, wide, wide_grad), (case.right, tensors, grad))]
    # A slope is a sum of terms of about 1, where itself it may be next to nothing.
    terms = case.joined(
        *((wide_grad * part).abs() for part in case.parts(*wide)[::-1]) if case.tensors else [wide_grad]
    )
    for ours, exact, theirs, added in zip(gradients(case, tensors, grad), *slopes, terms, strict=True):
        assert ours.dtype == dtype and ours.is_contiguous()
        assert_accurate(ours, exact, theirs, terms=torch.maximum(exact.abs(), added.abs()))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (2, 1, 3, 4)], ids=str)
@pytest.mark.parametrize("width", [0, 1, 24])
def test_any_leading_shape(case: Case, shape: tuple[int, ...], width: int, device: str) -> None:
    tensors = case.inputs(*shape, width, device=device)
    y = case(*tensors)
    assert y.shape == (*shape, width)
    torch.testing.assert_close(y, case.right(*tensors))
    for slope, t in zip(gradients(case, tensors, torch.ones_like(y)), tensors, strict=True):
        assert slope.shape == t.shape


@pytest.mark.parametrize("width", [1, 16, 111])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_gives_the_numbers_of_the_plain_one(case: Case, dtype: Any, width: int, device: str) -> None:
    """Bit for bit, on a GPU as well: nothing is added up, so all kernels compute an element alike."""
    plain = case.inputs(4, 6, width, dtype=dtype, device=device)
    grad = made(4, 6, width, dtype=dtype, device=device, seed=2)
    for layout, other in layouts(made, plain[0].shape[-1], dtype, device).items():
        for index in range(len(plain)):
            given = [*plain[:index], other, *plain[index + 1 :]]
            copies = [t.clone(memory_format=torch.contiguous_format) for t in given]
            assert torch.equal(case(*given), case(*copies)), layout
            assert all(map(torch.equal, gradients(case, given, grad), gradients(case, copies, grad))), layout
    for layout, other in layouts(made, width, dtype, device).items():
        right = gradients(case, plain, other.clone(memory_format=torch.contiguous_format))
        assert all(map(torch.equal, gradients(case, plain, other), right)), layout


@pytest.mark.parametrize("name", [case.name for case in TWO])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 8, 24, 111])
def test_one_tensor_gives_the_same_bits(name: str, dtype: Any, width: int, device: str) -> None:
    one, two = Case(name, 1), Case(name, 2)
    parts, grad = two.inputs(3, width, dtype=dtype, device=device), made(3, width, dtype=dtype, device=device, seed=2)
    assert torch.equal(one(*one.joined(*parts)), two(*parts))
    (both,) = gradients(one, one.joined(*parts), grad)
    assert torch.equal(both, *one.joined(*gradients(two, parts, grad)))


def test_the_halves_of_mul_and_silu_are_exchanged(device: str) -> None:
    x = made(3, 48, dtype=torch.bfloat16, device=device)
    exchanged = torch.cat([x[:, 24:], x[:, :24]], -1)
    assert torch.equal(ops.mul_and_silu(x), ops.silu_and_mul(exchanged))


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_bfloat16(name: str, device: str, assert_accurate: Callable[..., None]) -> None:
    """All finite gates: of the same sign as the exact result, near it in the tails, zero where it is too small."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    gate = bits[bits.isfinite()].to(device)
    right, halves = Case(name, 1).right, [gate, torch.ones_like(gate)]
    x = torch.cat(halves[::-1] if name == "mul_and_silu" else halves)
    assert_accurate(getattr(ops, name)(x), right(x.double().cpu()), right(x))
    grad_x = RAW.gated_activation_backward(torch.ones_like(gate), x, Case(name, 1).kind)
    assert bool(grad_x.isfinite().all())


@pytest.mark.parametrize("name", NAMES)
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
    assert_same_with_any_number_of_threads(lambda: (ops.gelu_and_mul(x), RAW.gated_activation_backward(grad, x, 1)))


def test_parameters(device: str) -> None:
    gate, up = Case("fatrelu_and_mul", 2).inputs(5, 33, device=device)
    right = F.threshold(gate, 0.7, 0.0) * up
    assert torch.equal(ops.fatrelu_and_mul(gate, up, threshold=0.7), right)
    assert torch.equal(ops.fatrelu_and_mul(torch.cat([gate, up], -1), threshold=0.7), right)
    right = swigluoai(gate, up, 0.5, 1.5)
    x = torch.stack([gate, up], -1).flatten(-2)
    torch.testing.assert_close(ops.swigluoai_and_mul(gate, up, alpha=0.5, limit=1.5), right)
    torch.testing.assert_close(ops.swigluoai_and_mul(x, alpha=0.5, limit=1.5), right)


def test_the_edges_have_the_slopes_of_torch(device: str) -> None:
    """At the threshold and at the limit, beyond them, and for what is no number."""
    gate = torch.tensor([-8.0, -7.0, 0.0, 0.5, 7.0, 7.5, math.inf, math.nan], device=device)
    for name in ("fatrelu_and_mul", "swigluoai_and_mul"):
        for one, other in ((gate, torch.full_like(gate, 2.0)), (torch.full_like(gate, 2.0), gate)):
            ours, right = getattr(ops, name)(one, other), FORMULAS[name](one, other)
            torch.testing.assert_close(ours, right, equal_nan=True)
            for mine, theirs in zip(
                gradients(getattr(ops, name), [one, other], torch.ones_like(gate)),
                gradients(FORMULAS[name], [one, other], torch.ones_like(gate)),
                strict=True,
            ):
                finite = ~gate.isnan()
                torch.testing.assert_close(mine[finite], theirs[finite])


def test_only_one_of_two_needs_a_gradient(device: str) -> None:
    gate, up = Case("silu_and_mul", 2).inputs(3, 8, device=device)
    for wanted in (gate, up):
        leaf = wanted.detach().requires_grad_()
        given = [leaf if t is wanted else t for t in (gate, up)]
        (ours,) = torch.autograd.grad(ops.silu_and_mul(*given).sum(), leaf)
        (right,) = torch.autograd.grad(FORMULAS["silu_and_mul"](*given).sum(), leaf)
        torch.testing.assert_close(ours, right)


def test_mul_and_silu_takes_its_two_tensors_in_the_order_of_its_name(device: str) -> None:
    first, second = Case("silu_and_mul", 2).inputs(3, 9, device=device)
    grad = made(3, 9, device=device, seed=2)
    kind = GatedKind.MUL_AND_SILU
    assert torch.equal(RAW.activation(first, second, kind), ops.silu_and_mul(second, first))
    ours = RAW.activation_backward(grad, first, second, kind)
    assert all(map(torch.equal, ours, gradients(ops.silu_and_mul, [second, first], grad)[::-1]))


def scalar(y: Any) -> Any:
    return (y.sin() * y).sum()


def leaves(tensors: Any) -> list[Any]:
    return [t.requires_grad_() for t in tensors]


def second_order(f: Callable[..., Any], *tensors: Any) -> Any:
    given = leaves(tensors)
    return torch.autograd.grad(scalar(torch.autograd.grad(scalar(f(*given)), given, create_graph=True)[0]), given)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "gradient": lambda f, *tensors: torch.autograd.grad(scalar(f(*leaves(tensors))), tensors),
    "gradient of the gradient": second_order,
    "gradient of an expanded one": lambda f, *tensors: torch.autograd.grad(f(*leaves(tensors)).sum(), tensors),
    "jvp": lambda f, *tensors: torch.func.jvp(f, tensors, tuple(torch.ones_like(t) for t in tensors)),
    "grad": lambda f, *tensors: torch.func.grad(lambda *t: scalar(f(*t)))(*tensors),
    "hessian": lambda f, *tensors: torch.func.hessian(lambda *t: scalar(f(*t)))(*tensors),
    "vmap": lambda f, *tensors: torch.vmap(f)(*tensors),
    "per-sample gradients": lambda f, *tensors: torch.vmap(torch.func.grad(lambda *t: scalar(f(*t))))(*tensors),
    "functionalize": lambda f, *tensors: torch.func.functionalize(f)(*tensors),
}


@pytest.mark.parametrize(
    "case", [*ONE, *TWO, *ALONE, *BY_OP], ids=lambda case: f"{case.name}-{case.tensors}-{case.raw}"
)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_and_transforms(case: Case, transform: str, device: str) -> None:
    ours = TRANSFORMS[transform](case, *case.inputs(4, 8, device=device))
    right = TRANSFORMS[transform](case.right, *case.inputs(4, 8, device=device))
    torch.testing.assert_close(ours, right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("grad_mode", [True, False])
def test_forward_mode(case: Case, grad_mode: bool, device: str) -> None:
    tensors = case.inputs(4, 8, device=device)

    def push(function: Callable[..., Any]) -> Any:
        with forward_ad.dual_level(), torch.set_grad_enabled(grad_mode):
            return tuple(forward_ad.unpack_dual(function(*(forward_ad.make_dual(t, t + 1) for t in tensors))))

    ours = push(case)
    assert ours[1] is not None
    torch.testing.assert_close(ours, push(case.right), rtol=1e-5, atol=1e-5)


def test_the_reference_is_torchs(case: Case) -> None:
    tensors = [t.double().requires_grad_() for t in case.inputs(3, 5)]
    grad = made(3, 5, seed=2).double().requires_grad_()
    options = (case.kind, 0.0 if case.name == "fatrelu_and_mul" else QUICK, 7.0)

    def forward(*t: Any) -> Any:
        if case.tensors == 1:
            return reference.gated_activation(*t, *options)
        return reference.activation(*t, *[None] * (2 - len(t)), *options)

    def backward(grad: Any, *t: Any) -> Any:
        if case.tensors == 1:
            return reference.gated_activation_backward(grad, *t, *options)
        return reference.activation_backward(grad, *t, *[None] * (2 - len(t)), *options)[: len(t)]

    torch.testing.assert_close(forward(*tensors), case.right(*tensors))
    ours, right = backward(grad, *tensors), torch.autograd.grad(case.right(*tensors), tensors, grad)
    torch.testing.assert_close(ours, right[0] if case.tensors == 1 else right)
    for function, given in ((forward, tensors), (backward, (grad, *tensors))):
        assert torch.autograd.gradcheck(function, given, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, given)


# What each function of one tensor, or of gates alone, refuses; and what a call refuses.
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "float64": (lambda x: x.double(), "x is float64; needed float32, float16 or bfloat16"),
    "integers": (lambda x: x.long(), "x is int64; needed float32, float16 or bfloat16"),
    "no dimension": (lambda x: x[0, 0], r"x has shape \(\); needed at least one dimension"),
    "an odd width": (lambda x: x[:, :7], r"x has shape \(4, 7\); needed an even last dimension"),
}
BAD: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x, name=case.name, make=make: getattr(ops, name)(make(x)), message)
    for case in (*ONE, *ALONE)
    for what, (make, message) in REFUSED.items()
    if case.tensors or what != "an odd width"
]
BAD += [
    (lambda x: ops.silu_and_mul(x, x[:2]), r"up has shape \(2, 8\); needed \(4, 8\), as x"),
    (lambda x: ops.silu_and_mul(x, x.half()), "up is float16 and x is float32; needed one dtype"),
    (lambda x: ops.silu_and_mul(x.double(), x), "x is float64; needed float32, float16 or bfloat16"),
    (lambda x: ops.silu_and_mul(x, x.to("meta")), r"up is on meta and x on (cpu|cuda:0); needed one device"),
    (lambda x: ops.swigluoai_and_mul(x, limit=-1.0), "limit is -1; needed a number that is not negative"),
    (lambda x: ops.swigluoai_and_mul(x, x, limit=math.nan), "limit is nan; needed a number"),
    (lambda x: RAW.gated_activation(x, -1), "kind is -1; needed 0 to 5"),
    (lambda x: RAW.gated_activation(x, 6), "kind is 6; needed 0 to 5"),
    (lambda x: RAW.gated_activation_backward(x[:, :4], x, -1), "kind is -1; needed 0 to 5"),
    (lambda x: RAW.gated_activation_backward(x[:, :4], x, 6), "kind is 6; needed 0 to 5"),
    (lambda x: RAW.activation(x, x, 8), "kind is 8; needed 0 to 7"),
    (lambda x: RAW.activation(x, None, 0), "kind is 0 and up is None; needed up for kinds 0 to 5"),
    (lambda x: RAW.activation(x, x, 7), "kind is 7 and up is a tensor; needed up for kinds 0 to 5"),
    (lambda x: RAW.activation_backward(x[:, :4], x, x, 0), r"grad has shape \(4, 4\); needed \(4, 8\), as x"),
    *(
        (lambda x, make=make: RAW.gated_activation_backward(make(x[:, :4]), x, 0), message)
        for make, message in [
            (lambda g: g[:, :3], r"grad has shape \(4, 3\) and x has shape \(4, 8\); needed the shape of x with half"),
            (lambda g: g[:2], r"grad has shape \(2, 4\) and x has shape \(4, 8\)"),
            (lambda g: g[0], r"grad has shape \(4,\) and x has shape \(4, 8\)"),
            (lambda g: g.half(), "grad is float16 and x is float32; needed one dtype"),
            (lambda g: g.to("meta"), r"grad is on meta and x on (cpu|cuda:0); needed one device"),
        ]
    ),
]


@pytest.mark.parametrize("way", ["kernel", "gradient", "traced", "transformed", "tangent"])
@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_one_clear_error(call: Callable[[Any], Any], message: str, way: str, device: str) -> None:
    x = made(4, 8, device=device)
    if way == "traced":
        if "meta" in message:
            return  # there a tensor of another device is a fake one
        with torch._subclasses.FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
            call(mode.from_tensor(x))
        return
    with contextlib.ExitStack() as stack:
        if way == "tangent":
            stack.enter_context(forward_ad.dual_level())
        stack.enter_context(pytest.raises(RuntimeError, match=message))
        (torch.func.functionalize(call) if way == "transformed" else call)(x.requires_grad_(way == "gradient"))


GRAPH = """
    import torch
    import torch.nn.functional as F
    from precast import ops

    torch.manual_seed(0)
    x = torch.randn(6, 48, device={device!r})

    def one(x):
        y = ops.silu_and_mul(x.sin()) + ops.mul_and_silu(x)
        return ops.gelu_and_mul(torch.cat([y, y.cos()], -1)) * ops.gelu_tanh_and_mul(x)

    def two(x):
        y = ops.silu_and_mul(x.sin(), x) + ops.gelu_quick(x)
        return ops.swigluoai_and_mul(torch.stack([y, x], -1).flatten(-2)) * ops.fatrelu_and_mul(x, y, threshold=0.1)

    def block(x):
        return one(x), two(x)

    def right(x):
        first, second = x.sin().chunk(2, -1)
        y = F.silu(first) * second + x[:, :24] * F.silu(x[:, 24:])
        z = F.silu(x.sin()) * x + x * torch.sigmoid(1.702 * x)
        gate = z.clamp(max=7.0)
        return (
            F.gelu(y) * y.cos() * (F.gelu(x[:, :24], approximate="tanh") * x[:, 24:]),
            gate * torch.sigmoid(1.702 * gate) * (x.clamp(-7, 7) + 1) * (F.threshold(x, 0.1, 0.0) * z),
        )

    def both(function, x):
        leaf = x.clone().requires_grad_()
        y, z = function(leaf)
        return y, z, torch.autograd.grad(y.sin().sum() + z.sin().sum(), leaf)[0]
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
            assert torch.equal(y[row], Case("silu_and_mul", 1).right(part))
            assert torch.equal(grad_x[row], RAW.gated_activation_backward(y[row].clone(), part, 0))
        assert y.shape == (shape[0], half)
        del room, x, y, grad_x
        torch.cuda.empty_cache()


@pytest.mark.gpu
def test_capture_in_a_cuda_graph(case: Case) -> None:
    tensors = case.inputs(64, 1024, device="cuda")
    assert_captured(lambda: case(*tensors))
