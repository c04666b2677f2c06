"""Tensors for the CPU kernels, the same ones for each call, and lists of them."""

from __future__ import annotations

from typing import Any

Lists = list[list[Any]]


def made(shape: tuple[int, ...], dtype: Any, count: int = 1, seed: int = 0) -> list[Any]:
    """So many tensors of normal values."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(count)]


def copied(lists: Lists) -> Lists:
    """The same values in memory of their own."""
    return [[tensor.clone() for tensor in tensors] for tensors in lists]


def assert_same_bits(ours: Lists, others: Lists) -> None:
    """Equal, also where they are not numbers."""
    import torch

    for tensors, wanted in zip(ours, others, strict=True):
        for one, other in zip(tensors, wanted, strict=True):
            assert one.dtype == other.dtype
            bits = torch.int32 if one.dtype == torch.float32 else torch.int16
            assert torch.equal(one.view(bits), other.view(bits))
