"""Tensors for the op tests: random ones that are the same in every run, and those that do not lie as plain rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from precast._builder.catalogue import FAMILIES

# The ops over rows. Rotations and caches have tests of their own, and what goes over lists of tensors is a step of an
# optimizer.
ON_ROWS = tuple(op for family in FAMILIES if family.plain and not family.late for op in family.op_names)


def made(*shape: int, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0) -> Any:
    """Normally distributed numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype)


def layouts(make: Callable[..., Any], width: int, dtype: Any, device: str) -> dict[str, Any]:
    """Tensors of shape (4, 6, width) that are not plain, out of what ``make`` gives."""

    def new(*shape: int) -> Any:
        return make(*shape, dtype=dtype, device=device)

    wide = new(4, 6, 2 * width + 3)
    return {
        "row-strided": wide[..., :width],
        "row-strided, unaligned": wide[..., 1 : width + 1],
        "unaligned": new(4 * 6 * width + 1)[1:].view(4, 6, width),
        "every other row": new(4, 12, width)[:, ::2],
        "every other column": wide[..., : 2 * width : 2],
        "transposed rows": new(6, 4, width).transpose(0, 1),
        "transposed": new(width, 6, 4).permute(2, 1, 0),
        "one row for all": new(1, 1, width).expand(4, 6, width),
        "one value for all": new(4, 6, 1).expand(4, 6, width),
    }


def _all(results: Any) -> tuple[Any, ...]:
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def assert_same_with_any_number_of_threads(compute: Callable[[], Any]) -> None:
    """Bit for bit."""
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            found.append(_all(compute()))
    finally:
        torch.set_num_threads(threads)
    assert all(all(map(torch.equal, found[0], other)) for other in found[1:])


def assert_captured(compute: Callable[[], Any]) -> None:
    """A CUDA graph of it writes, when it is replayed, what was computed before."""
    expected = _all(compute())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = _all(compute())
    for result in results:
        result.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, results, expected))
