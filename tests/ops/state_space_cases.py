"""Calls of the state-space ops, for the tests of kernels and of the emulated device code."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.convolution_cases import assert_close as assert_close  # noqa: PLC0414 - exported
from tests.ops.tensors import made


def made_call(
    dtype: Any, wide: bool, shape: tuple[int, ...], index: Any = None, *, options: bool = True, device: str = "cpu"
) -> list[Any]:
    """All arguments of the op. ``wide``: float32 states; ``index``: the dtype of indices; ``options``: with them."""
    batch, heads, rows, groups, size = shape

    def new(*shape: int, seed: int, kind: Any = dtype) -> Any:
        return made(*shape, dtype=kind, device=device, seed=seed)

    return [
        new(batch if index is None else 7, heads, rows, size, seed=1, kind=torch.float32 if wide else dtype),
        new(batch, heads, rows, seed=2),
        new(batch, heads, seed=3) if options else new(batch, heads, seed=3, kind=torch.float32),
        -new(heads, seed=4, kind=torch.float32).abs(),
        new(batch, groups, size, seed=5),
        new(batch, groups, size, seed=6),
        new(heads, seed=7) if options else None,
        new(batch, heads, rows, seed=8) if options else None,
        new(heads, seed=9, kind=torch.float32) if options else None,
        None if index is None else torch.tensor([0, -1, 1], device=device)[:batch].to(index),
        options,
    ]
