"""The device code of the gated activations, run on the CPU: every index and launch choice, and the values."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.activations import reference  # noqa: E402
from tests.unit.csrc import emulated  # noqa: E402
from tests.unit.csrc.emulated import Emulated, unaligned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("activations",)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
KINDS = ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul"]  # the last one: of exchanged halves


made = functools.partial(emulated.made, scale=2.0)


def assert_forward(ours: Any, x: Any, kind: int) -> None:
    """Within one unit in the last place of the rounded activation's product, which torch computes as well."""
    torchs = reference.gated_activation(x, kind)
    assert ours.shape == torchs.shape and ours.dtype == torchs.dtype
    assert ours.is_contiguous()
    exact = reference.gated_activation(x.double(), kind)
    error, theirs = (ours.double() - exact).abs(), (torchs.double() - exact).abs()
    unit = torch.finfo(x.dtype).eps * exact.abs() * (8 if x.dtype == torch.float32 else 1)
    if ours.numel() > 0:
        assert bool(((error <= unit) | (error <= 1.5 * theirs.max())).all())


def assert_backward(ours: Any, grad: Any, x: Any, kind: int) -> None:
    exact = reference.gated_activation_backward(grad.double(), x.double(), kind)
    assert ours.shape == x.shape and ours.dtype == x.dtype
    assert ours.is_contiguous()
    gate, factor = reference._halves(x.double(), kind)
    # What is added up for a slope is about 1, and a unit of float32 of it stays where the slope is next to nothing.
    terms = torch.maximum(grad.double().abs() * factor.abs(), grad.double().abs() * gate.abs()).repeat(
        *([1] * (x.dim() - 1)), 2
    )
    allowed = (0 if x.dtype == torch.float32 else 0.51) * torch.finfo(x.dtype).eps * exact.abs() + 1e-6 * terms + 1e-7
    assert bool(((ours.double() - exact).abs() <= allowed).all())


# (dtype, shape of x, kernel, blocks)
# Blocks of the backward and of the forward, which moves rows of 16 bytes or more by vectors wherever they begin.
SHAPES = [
    (torch.bfloat16, (5, 128), "", 1, 1),
    (torch.bfloat16, (3, 2048), "", 6, 6),
    (torch.bfloat16, (700, 16), "", 11, 11),
    (torch.bfloat16, (2, 3, 48), "", 1, 1),
    (torch.bfloat16, (3, 2 * 2056), "", 13, 13),
    (torch.float16, (16,), "", 1, 1),
    (torch.float16, (9, 7 * 16), "", 1, 1),
    (torch.float16, (9, 222), "any", 4, 3),
    (torch.float16, (2, 1538), "any", 7, 4),
    (torch.bfloat16, (9, 14), "any", 1, 1),
    (torch.bfloat16, (9, 18), "any", 1, 1),
    (torch.float32, (700, 2), "any", 3, 3),
    (torch.float32, (4, 1000), "", 8, 8),
    (torch.float32, (1, 24), "", 1, 1),
    (torch.float32, (3, 200_006), "any", 1172, 1172),
]


def general_of(shape: tuple[int, ...], dtype: Any) -> str:
    """The kernel of rows at any address."""
    return "shifted" if shape[-1] // 2 * dtype.itemsize >= 16 else "any"


def vectors_of(y: Any) -> int:
    """Of a row of the result, at the worst address."""
    return int((y.shape[-1] * y.itemsize + 31 - y.itemsize) // 16)


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize(("dtype", "shape", "kernel", "_", "blocks"), SHAPES, ids=str)
def test_forward(
    gpu: Emulated, dtype: Any, shape: tuple[int, ...], kernel: str, _: int, blocks: int, kind: int
) -> None:
    x = made(*shape, dtype=dtype)
    gpu.launches()
    y = gpu.ops.gated_activation(x, kind)
    name = f"gated_activation_{NAMES[dtype]}_{general_of(shape, dtype)}" if kernel else f"{KINDS[kind]}_{NAMES[dtype]}"
    assert gpu.launches() == f"{name}<{blocks},64x1>"
    assert_forward(y, x, kind)


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize(("dtype", "shape", "kernel", "blocks", "_"), SHAPES, ids=str)
def test_backward(
    gpu: Emulated, dtype: Any, shape: tuple[int, ...], kernel: str, blocks: int, _: int, kind: int
) -> None:
    x, grad = made(*shape, dtype=dtype), made(*shape[:-1], shape[-1] // 2, dtype=dtype, seed=1)
    gpu.launches()
    grad_x = gpu.ops.gated_activation_backward(grad, x, kind)
    name = f"{KINDS[kind].replace('and_mul', 'backward')}_{NAMES[dtype]}"
    if kernel:
        name = f"gated_backward_{NAMES[dtype]}_{general_of(shape, dtype)}"
        blocks = -(-grad.shape[0] * vectors_of(grad) // 62) if name.endswith("shifted") else blocks
    assert gpu.launches() == f"{name}<{blocks},64x1>"
    assert_backward(grad_x, grad, x, kind)


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_aligned_goes_through_the_general_kernel(gpu: Emulated, dtype: Any, kind: int) -> None:
    x, grad = made(3, 512, dtype=dtype), made(3, 256, dtype=dtype, seed=1)
    gpu.launches()
    assert_forward(gpu.ops.gated_activation(unaligned(x), kind), x, kind)
    blocks = 4 if dtype == torch.float32 else 2
    assert gpu.launches() == f"gated_activation_{NAMES[dtype]}_shifted<{blocks},64x1>"
    for one, other in ((unaligned(grad), x), (grad, unaligned(x))):
        assert_backward(gpu.ops.gated_activation_backward(one, other, kind), grad, x, kind)
        blocks = -(-3 * vectors_of(grad) // 62)
        assert gpu.launches() == f"gated_backward_{NAMES[dtype]}_shifted<{blocks},64x1>"


@pytest.mark.parametrize("kind", [0, 3])
def test_strided_rows_are_read_where_they_lie(gpu: Emulated, kind: int) -> None:
    wide = made(4, 3, 96, dtype=torch.bfloat16)
    grads = made(4, 3, 48, dtype=torch.bfloat16, seed=1)
    for x, aligned in ((wide[..., :64], True), (wide[..., 1:65], False), (wide[:1, :1, 16:80], True)):
        grad = grads[: x.shape[0], : x.shape[1], :32]
        gpu.launches()
        assert_forward(gpu.ops.gated_activation(x, kind), x, kind)
        assert_backward(gpu.ops.gated_activation_backward(grad, x, kind), grad, x, kind)
        assert ("shifted" in gpu.launches()) != aligned
    for x in (wide.transpose(0, 1)[..., :64], wide[..., ::2], wide[:, :1].expand(4, 3, 96)):
        assert_forward(gpu.ops.gated_activation(x, kind), x, kind)
    one = made(4, 3, 1, dtype=torch.bfloat16).expand(4, 3, 48)
    assert_backward(gpu.ops.gated_activation_backward(one, wide, kind), one, wide, kind)


def test_nothing_is_launched_for_nothing(gpu: Emulated) -> None:
    gpu.launches()
    for shape in ((0, 8), (3, 0), (0,), (2, 0, 8)):
        half = (*shape[:-1], shape[-1] // 2)
        assert gpu.ops.gated_activation(torch.empty(shape), 0).shape == half
        assert gpu.ops.gated_activation_backward(torch.empty(half), torch.empty(shape), 0).shape == shape
    assert gpu.launches() == ""


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(gpu: Emulated, dtype: Any, kind: int) -> None:
    gate = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 6e4, -6e4, -90.0, -200.0]).to(dtype)
    gate = gate if dtype == torch.float16 else torch.cat([gate, torch.tensor([1e30, -1e30, 3e38, -3e38]).to(dtype)])
    x = torch.cat([gate, torch.ones_like(gate)])
    y = gpu.ops.gated_activation(x, kind)
    right = gate * (gate > 0)  # NaN for minus infinity, as torch's formulas have it
    torch.testing.assert_close(y, right, rtol=0, atol=0, equal_nan=True)
    grad_gate, grad_factor = gpu.ops.gated_activation_backward(torch.ones_like(gate), x, kind).chunk(2)
    torch.testing.assert_close(grad_factor, right, rtol=0, atol=0, equal_nan=True)
    finite = gate.isfinite()
    assert torch.equal(grad_gate[finite], torch.where(gate == 0, 0.5, (gate > 0).float()).to(dtype)[finite])
    assert grad_gate[4].isnan()


@pytest.mark.parametrize("kind", range(4, 8))
def test_slopes_at_the_largest_numbers(gpu: Emulated, kind: int) -> None:
    gate = torch.tensor([3e38, 1e38, 1e30, 100.0, -100.0, -1e30, -1e38, -3e38])
    zeros = torch.zeros_like(gate)
    factor = {4: zeros + 1, 5: zeros}.get(kind)
    for count in (8, 7):  # vectors, or single elements
        given = (zeros[:count] + 1, gate[:count], None if factor is None else factor[:count])
        found, _ = gpu.ops.activation_backward(*given, kind, 1.702, 3.4e38)
        assert torch.equal(found, (gate > 0).float()[:count])


ALPHA, LIMIT = 1.5, 2.0
PAIRS = [  # (kind, name of the kernel for vectors, that of its gradients)
    (0, "silu_and_mul", "silu_backward"),
    (1, "gelu_and_mul", "gelu_backward"),
    (2, "gelu_tanh_and_mul", "gelu_tanh_backward"),
    (3, "silu_and_mul", "silu_backward"),
    (4, "gated_activation_others", "gated_backward_others"),
    (5, "gated_activation_others", "gated_backward_others"),
    (6, "gated_activation_others", "gated_backward_others"),
    (7, "gated_activation_others", "gated_backward_others"),
]


def kernel(name: str, dtype: Any) -> str:
    return f"{name.removesuffix('_others')}_{NAMES[dtype]}{'_others' if name.endswith('_others') else ''}"


def assert_near(ours: Any, exact: Any, *terms: Any) -> None:
    """Within a unit of the rounded activation and of the result, and a few of float32 of what was added up."""
    unit = (0 if ours.dtype == torch.float32 else 1.1) * torch.finfo(ours.dtype).eps * exact.abs()
    size = torch.stack([exact.abs(), *(term.double().abs().expand_as(exact) for term in terms)]).amax(0)
    assert ours.dtype in DTYPES and ours.is_contiguous() and ours.shape == exact.shape
    assert bool(((ours.double() - exact).abs() <= unit + 2e-6 * size + 1e-7).all())


@pytest.mark.parametrize(("kind", "forward", "backward"), PAIRS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gates_and_factors_in_two_tensors(gpu: Emulated, dtype: Any, kind: int, forward: str, backward: str) -> None:
    wide = made(3, 4, 80, dtype=dtype)
    for x, other, grad, kernels in (
        (wide, made(3, 4, 80, dtype=dtype, seed=1), made(3, 4, 80, dtype=dtype, seed=2), (forward, backward)),
        (wide[..., :64], made(3, 4, 96, dtype=dtype)[..., 16:80], made(1, 1, 64, dtype=dtype), (forward, backward)),
        (unaligned(made(5, 33, dtype=dtype)), made(5, 33, dtype=dtype, seed=1), made(5, 33, dtype=dtype), None),
        (made(2, 1, dtype=dtype), made(2, 3, dtype=dtype)[:, 1:2], made(2, 1, dtype=dtype), None),
    ):
        grad, up = grad.expand_as(x), other if kind < 6 else None
        options = (kind, ALPHA, LIMIT)
        exact = [None if t is None else t.double() for t in (grad, x, up)]
        gpu.launches()
        y, grads = gpu.ops.activation(x, up, *options), gpu.ops.activation_backward(grad, x, up, *options)
        if kernels is not None:
            assert [launch.partition("<")[0] for launch in gpu.launches().split()] == [
                kernel(name, dtype) for name in kernels
            ]
        assert_near(y, reference.activation(*exact[1:], *options), x.double() * (1 if up is None else other.double()))
        right = reference.activation_backward(*exact, *options)
        assert_near(grads[0], right[0], grad.double() * (1 if up is None else other.double()))
        if up is None:
            assert grads[1].shape == (0,)
        else:
            assert_near(grads[1], right[1], grad.double() * x.double())


@pytest.mark.parametrize("kind", range(8))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_place_and_any_end_give_the_same_bits(gpu: Emulated, dtype: Any, kind: int) -> None:
    """Tensors without gaps are one row: vectors, and an end. Others are shifted into the vectors of the result."""
    rows, width = 5, 35
    plain = [made(rows, width, dtype=dtype, seed=seed) for seed in range(3)]
    wide = [torch.cat([made(rows, 3, dtype=dtype), one, one], -1) for one in plain]
    _, forward, backward = PAIRS[kind]
    general = f"gated_activation_{NAMES[dtype]}_shifted"
    places = {
        "no gaps": (plain, kernel(forward, dtype), kernel(backward, dtype)),
        "gaps": ([one[:, 3 : width + 3] for one in wide], general, None),
        "one of them at any address": ([unaligned(plain[0]), *plain[1:]], general, None),
    }
    results = []
    for text, ((x, up, grad), *names) in places.items():
        other = up if kind < 6 else None
        gpu.launches()
        y = gpu.ops.activation(x, other, kind, ALPHA, LIMIT)
        results.append((y, *gpu.ops.activation_backward(grad, x, other, kind, ALPHA, LIMIT)))
        launches = [launch.partition("<")[0] for launch in gpu.launches().split()]
        assert all(name in (None, launch) for name, launch in zip(names, launches, strict=True)), text
    for result in results[1:]:
        assert all(map(torch.equal, results[0], result))
    right = reference.activation(plain[0].double(), plain[1].double() if kind < 6 else None, kind, ALPHA, LIMIT)
    assert_near(results[0][0], right, plain[0].double() * (plain[1].double() if kind < 6 else 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gates_and_factors_that_alternate(gpu: Emulated, dtype: Any) -> None:
    wide = made(3, 4, 192, dtype=dtype)
    for x, vectors in (
        (wide, True),
        (wide[..., :64], True),
        (unaligned(made(5, 66, dtype=dtype)), False),
        (made(5, 14, dtype=dtype), False),
        (made(300, 2, dtype=dtype), False),
    ):
        grad, options = made(*x.shape[:-1], x.shape[-1] // 2, dtype=dtype, seed=2), (5, ALPHA, LIMIT)
        gpu.launches()
        y, grad_x = gpu.ops.gated_activation(x, *options), gpu.ops.gated_activation_backward(grad, x, *options)
        units = y.numel() * (x.element_size() if vectors else 16) // 16
        assert gpu.launches().split() == [
            f"{kernel(name, dtype)}<{-(-units // 64)},64x1>"
            for name in ("gated_activation_others", "gated_backward_others")
        ]
        assert_near(y, reference.gated_activation(x.double(), *options), x[..., ::2] * 2)
        right = reference.gated_activation_backward(grad.double(), x.double(), *options)
        assert_near(grad_x, right, (x.double().abs() + 2) * grad.double().abs().repeat_interleave(2, -1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_edges_of_thresholds_and_limits(gpu: Emulated, dtype: Any) -> None:
    inf, nan = float("inf"), float("nan")
    gate = torch.tensor([-inf, -6e4, -7.0, 0.0, 0.5, 7.0, 7.5, 6e4, inf, nan], dtype=dtype)
    two = torch.full_like(gate, 2.0)
    for x, up in ((gate, two), (two, gate)):
        for options in ((4, 0.5, 0.0), (5, 1.702, 7.0)):
            ours, right = gpu.ops.activation(x, up, *options), reference.activation(x, up, *options)
            torch.testing.assert_close(ours[1:], right[1:], equal_nan=True)
            mine = gpu.ops.activation_backward(two, x, up, *options)
            for one, other in zip(mine, reference.activation_backward(two, x, up, *options), strict=True):
                torch.testing.assert_close(one[1:-1], other[1:-1])
    for kind in (6, 7):
        finite = gate[1:-2]
        ours = gpu.ops.activation_backward(torch.ones_like(finite), finite, None, kind, 1.702, 0.0)[0]
        right = reference.activation_backward(torch.ones_like(finite).double(), finite.double(), None, kind, 1.702, 0.0)
        torch.testing.assert_close(ours.double(), right[0], rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
