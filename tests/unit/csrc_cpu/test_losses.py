"""Cross entropy at every CPU level: near float64 at any width, the same bits wherever a multiply-add is fused."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.losses import reference  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

OPS = torch.ops.precast
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def called(columns: int, dtype: Any) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(columns)
    logits = (3 * torch.randn(5, columns, generator=generator)).to(dtype)
    target = torch.tensor([columns - 1, 0, columns // 2, -100, columns // 3])
    weight = torch.rand(columns, generator=generator) + 0.1
    return logits, target, weight, torch.stack([torch.tensor(0.3), weight.sum()]), -100, 0.1, 1e-3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_near_float64_at_any_width(loss_levels: Any, level: str, dtype: Any) -> None:
    loss_levels.choose(level)
    unit = 0.0 if dtype == torch.float32 else 0.501 * torch.finfo(dtype).eps
    for columns in (*range(1, 50), 1023, 1025, 4097, 100_003):
        logits, *args = called(columns, dtype)
        losses, lse, grad = OPS.cross_entropy_with_grad(logits, *args)
        exact = reference.cross_entropy_with_grad(logits.double(), *args)
        torch.testing.assert_close((losses.double(), lse.double()), exact[:2], rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(grad.double(), exact[2], rtol=unit + 3e-6, atol=2e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_bits_at_every_fused_level_and_thread_count(loss_levels: Any, dtype: Any) -> None:
    threads = torch.get_num_threads()
    for columns in (7, 33, 1029, 9001):
        args = called(columns, dtype)
        found = loss_levels.each(lambda: OPS.cross_entropy_with_grad(*args))  # noqa: B023 - called at once
        found.pop("baseline", None)  # rounds the product too
        torch.set_num_threads(1)
        found["one thread"] = OPS.cross_entropy_with_grad(*args)
        torch.set_num_threads(threads)
        first, *others = found.values()
        for other in others:
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
