"""An emulated library as Python sees it, and the tensors that it is called with."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from precast._builder.catalogue import Family


class Emulated:
    """The ops of the emulated library of some families, in a namespace of their own, and what they launched."""

    def __init__(self, path: Path, families: Iterable[Family]) -> None:
        import torch

        families = tuple(families)
        space = f"precast_emulated_{families[0].name}"
        self.library = torch.library.Library(space, "DEF")
        for family in families:
            for schema in family.ops:
                self.library.define(schema)
        self.c = ctypes.CDLL(str(path))
        self.c.emulated_launches.restype = ctypes.c_char_p
        self.c.emulated_register(space.encode())
        self.ops = getattr(torch.ops, space)

    def launches(self) -> str:
        """The kernels since the last call."""
        text: bytes = self.c.emulated_launches()
        return text.decode().strip()


def made(*shape: int, dtype: Any = None, seed: int = 0, scale: float = 1.0) -> Any:
    """Normal values, the same ones for each call with this shape and seed."""
    import torch

    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return (scale * values).to(dtype or torch.float32)


def unaligned(tensor: Any) -> Any:
    """The same values one element off a 16-byte boundary."""
    import torch

    room = torch.empty(tensor.numel() + 8, dtype=tensor.dtype)
    offset = next(i for i in range(8) if (room.data_ptr() + i * tensor.element_size()) % 16)
    view = room[offset : offset + tensor.numel()].view(tensor.shape)
    view.copy_(tensor)
    return view
