"""The device code of the gated activations, run on the CPU: every index and launch choice, and the values."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast._builder import catalogue  # noqa: E402
from precast.ops.activations import reference  # noqa: E402
from tests.unit.csrc import emulated  # noqa: E402
from tests.unit.csrc.emulated import Emulated, unaligned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
KINDS = ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul"]  # the last one: of exchanged halves


@pytest.fixture(scope="module")
def gpu(emulated_activations: Path) -> Emulated:
    return Emulated(emulated_activations, [catalogue.get("activations"), catalogue.get("activations_backward")])


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


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize(("dtype", "shape", "kernel", "_", "blocks"), SHAPES, ids=str)
def test_forward(
    gpu: Emulated, dtype: Any, shape: tuple[int, ...], kernel: str, _: int, blocks: int, kind: int
) -> None:
    x = made(*shape, dtype=dtype)
    gpu.launches()
    y = gpu.ops.gated_activation(x, kind)
    general = "shifted" if shape[-1] // 2 * dtype.itemsize >= 16 else "any"
    name = f"gated_activation_{NAMES[dtype]}_{general}" if kernel else f"{KINDS[kind]}_{NAMES[dtype]}"
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
    name = KINDS[kind].replace("and_mul", "backward")
    name = f"gated_backward_{NAMES[dtype]}_any" if kernel else f"{name}_{NAMES[dtype]}"
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
        assert gpu.launches() == f"gated_backward_{NAMES[dtype]}_any<3,64x1>"


@pytest.mark.parametrize("kind", [0, 3])
def test_strided_rows_are_read_where_they_lie(gpu: Emulated, kind: int) -> None:
    wide = made(4, 3, 96, dtype=torch.bfloat16)
    grads = made(4, 3, 48, dtype=torch.bfloat16, seed=1)
    for x, aligned in ((wide[..., :64], True), (wide[..., 1:65], False), (wide[:1, :1, 16:80], True)):
        grad = grads[: x.shape[0], : x.shape[1], :32]
        gpu.launches()
        assert_forward(gpu.ops.gated_activation(x, kind), x, kind)
        assert_backward(gpu.ops.gated_activation_backward(grad, x, kind), grad, x, kind)
        assert ("any" in gpu.launches()) != aligned
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
