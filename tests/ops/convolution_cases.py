"""Calls of the convolutions, for the tests of kernels and of the emulated device code."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.tensors import made


def lines(batch: int, channels: int, tokens: int, last: bool, dtype: Any, device: str = "cpu", seed: int = 0) -> Any:
    """``(batch, channels, tokens)``; ``last``: with channels as neighbours in memory."""
    shape = (batch, tokens, channels) if last else (batch, channels, tokens)
    found = made(*shape, dtype=dtype, device=device, seed=seed)
    return found.transpose(1, 2) if last else found


def cuts(cut: str, tokens: int, seed: int = 0, device: str = "cpu") -> tuple[Any, Any]:
    """An index or starts: empty sequences, some at both ends, runs that come again, padding."""
    draw = torch.Generator().manual_seed(seed)
    if cut == "whole":
        return None, None
    if cut == "index":
        index = torch.randint(-1, 3, (2, tokens), generator=draw)
        return (index.sort(1).values if seed % 2 else index).to(device, (torch.int32, torch.int64)[seed % 3 % 2]), None
    starts = torch.randint(0, tokens + 1, (6,), generator=draw)
    starts = torch.cat([torch.tensor([0, 0] if seed % 2 else []), starts, torch.tensor([tokens] * (seed % 3))])
    return None, starts.sort().values.to(device, (torch.int64, torch.int32)[seed % 2])


def made_call(
    dtype: Any,
    last: bool,
    channels: int,
    tokens: int,
    width: int,
    index: Any = None,
    starts: Any = None,
    *,
    wide: bool = False,
    bias: bool = True,
    state: bool = True,
    device: str = "cpu",
) -> tuple[Any, ...]:
    """The first six arguments of the op."""
    kind = torch.float32 if wide else dtype
    batch, sequences = (2, 2) if starts is None else (1, len(starts) - 1)
    return (
        lines(batch, channels, tokens, last, dtype, device),
        made(channels, width, dtype=kind, device=device, seed=1),
        made(channels, dtype=kind, device=device, seed=2) if bias else None,
        lines(sequences, channels, width - 1, not last, dtype, device, 3) if state else None,
        index,
        starts,
    )


def step(
    dtype: Any,
    last: bool,
    channels: int,
    width: int,
    length: int,
    tokens: int,
    picks: Any,
    turns: Any,
    device: str = "cpu",
) -> list[Any]:
    """The arguments of an update; no tokens: x has two dimensions. ``picks``, ``turns``: dtypes of integers or None."""
    x = (
        made(3, channels, dtype=dtype, device=device)
        if tokens == 0
        else lines(3, channels, tokens, last, dtype, device)
    )
    state = lines(3 if picks is None else 7, channels, length, last, dtype, device, 1)
    indices = None if picks is None else torch.tensor([4, -1, 2], dtype=picks, device=device)
    positions = None if turns is None else torch.tensor([3, 17, 1000], dtype=turns, device=device)
    weight, bias = (made(*size, dtype=dtype, device=device, seed=2) for size in ((channels, width), (channels,)))
    return [x, state, weight, bias, indices, positions]


def assert_close(ours: Any, theirs: Any, sums: int = 1) -> None:
    """Within half a unit of the dtype and float32's errors; ``sums``: by how much more, where many are added."""
    unit = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[ours.dtype]
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs.to(ours), rtol=unit * sums, atol=4 * unit * sums)
