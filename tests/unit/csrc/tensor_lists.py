"""The lists of tensors that the optimizers' tests step, and how near a result must be."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

# One block and less, whole blocks, tails, nothing at all, a scalar; enough of them for two rounds of the search.
SHAPES = [(3,), (512,), (515,), (), (0,), (40, 31), (1024,), *[(1 + i % 3,) for i in range(36)]]


def made(dtype: Any, seed: int = 0, shapes: Any = SHAPES) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def give_grads(params: list[Any], seed: int, dtype: Any = None) -> None:
    for param, grad in zip(params, made(torch.float32, seed, [p.shape for p in params]), strict=True):
        param.grad = grad.to(dtype or param.dtype)


def assert_near(ours: Any, exact: Any, terms: float, step: int) -> None:
    """Float32: 2e-6 of what was added up, for each step; the others: as near, and then rounded once per step."""
    kind = torch.finfo(ours.dtype)
    allowed = step * (2e-6 * (exact.abs() + terms) + (0 if kind.bits == 32 else kind.eps * (exact.abs() + kind.tiny)))
    error = (ours.double() - exact.double()).abs()
    assert bool((error <= allowed).all()), f"off by {error.max()} of {exact.abs().max()}"
