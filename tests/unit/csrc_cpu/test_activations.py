"""The gated activations at every CPU level: near float64 in the middle and in the tails, the same bits at any level."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.csrc_cpu.conftest import LEVELS

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = [F32, F16, BF16]
OPS = torch.ops.precast
SILU, GELU, GELU_TANH, MUL_AND_SILU = range(4)


@pytest.fixture
def forward_levels() -> Iterator[Any]:
    from tests.unit.csrc_cpu import conftest

    yield from conftest._levels_of("gated_activation")


def exact(gate: Any, kind: int) -> Any:
    """The activation in float64, without the cancellation that 1 + erf and 1 + tanh have in the negative tail."""
    x = gate.double()
    if kind == GELU:
        return x * 0.5 * torch.special.erfc(x * -(0.5**0.5))
    if kind == GELU_TANH:
        return x * torch.sigmoid((8 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    return x * torch.sigmoid(x)


def activated(gate: Any, kind: int) -> Any:
    return OPS.gated_activation(torch.cat([gate, torch.ones_like(gate)], -1), kind)


@pytest.mark.parametrize("kind", [SILU, GELU, GELU_TANH])
def test_the_tails_keep_their_digits(forward_levels: Any, level: str, kind: int) -> None:
    """Relative to the element, down to where float32 ends; torch's own GELUs are off by all of it there."""
    forward_levels.choose(level)
    end = {SILU: -87.0, GELU: -13.0, GELU_TANH: -9.0}[kind]
    gate = torch.linspace(end, 12.0, 100_003)
    right = exact(gate, kind)
    error = ((activated(gate, kind).double() - right) / right).abs()
    # An error of the argument of exp is one of the result: large where the argument is, if it is a rounded polynomial.
    x = gate.double().clamp(max=0)
    allowed = 5e-7 + (2.4e-7 * 1.596 * (x + 0.044715 * x**3).abs() if kind == GELU_TANH else 0 * x)
    assert bool((error <= allowed).all()), f"off by {float(error.max()):.2e}"


@pytest.mark.parametrize("kind", [SILU, GELU, GELU_TANH, MUL_AND_SILU])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_width(forward_levels: Any, level: str, dtype: Any, kind: int) -> None:
    """Every length of a row's last part, and the edges of a piece: nothing is written beside the result."""
    forward_levels.choose(level)
    generator = torch.Generator().manual_seed(0)
    for width in (*range(1, 35), 4095, 4096, 4097, 8193):
        x = torch.randn(3, 2 * width, generator=generator).to(dtype)
        gate, factor = x.chunk(2, -1) if kind != MUL_AND_SILU else x.chunk(2, -1)[::-1]
        ours, right = OPS.gated_activation(x, kind).double(), exact(gate, kind).to(dtype).double() * factor.double()
        unit = 1e-6 if dtype == F32 else torch.finfo(dtype).eps
        # One more unit where the rounding of an activation between two numbers falls the other way.
        assert bool(((ours - right).abs() <= 2 * unit * right.abs() + 1e-7).all()), width


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_levels_agree(activation_levels: Any, dtype: Any) -> None:
    """Bitwise with fused multiply-add; without, as near as the functions themselves are."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(7, 2 * 1043, generator=generator) * 4).to(dtype)
    grad = torch.randn(7, 1043, generator=generator).to(dtype)

    def compute() -> list[Any]:
        return [
            result
            for kind in range(6)
            for result in (
                OPS.gated_activation(x, kind, 0.7, 1.5),
                OPS.gated_activation_backward(grad, x, kind, 0.7, 1.5),
            )
        ] + [
            result
            for kind, up in ((0, grad), (4, grad), (5, grad), (6, None), (7, None))
            for result in (
                OPS.activation(x[:, :1043], up, kind, 0.7, 1.5),
                *OPS.activation_backward(grad, x[:, :1043], up, kind, 0.7, 1.5)[: 1 if up is None else 2],
            )
        ]

    results = activation_levels.each(compute)
    plain = results.pop(LEVELS[0])
    for first, second in itertools.pairwise(results.values()):
        assert all(map(torch.equal, first, second))
    for result in results.values():
        for one, other in zip(result, plain, strict=True):
            scale = other.abs().max()
            assert float((one - other).abs().max() / scale) <= (1e-6 if dtype == F32 else torch.finfo(dtype).eps)
