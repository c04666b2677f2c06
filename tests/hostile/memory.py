"""Memory that ends where a page begins that nobody may touch, and what tensors held before a call."""

from __future__ import annotations

import ctypes
import mmap
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.hostile.calls import extent

_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Gives out memory between two guard pages, that lies against the one behind it. What was given comes back."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._used: list[tuple[int, int]] = []

    def place(self, old: Any) -> Any:
        """A storage with the bytes of another one."""
        size = old.nbytes()
        if size == 0 or old.device.type != "cpu":
            return old.clone()
        pages = -(-size // _PAGE)
        begin = self._free[pages].pop() if self._free[pages] else _mapped(pages)
        self._used.append((pages, begin))
        bytes_ = (ctypes.c_char * size).from_address(begin + pages * _PAGE - size)
        new = torch.frombuffer(bytes_, dtype=torch.uint8)
        new.copy_(_bytes(old))
        return new.untyped_storage()

    def take_back(self) -> None:
        for pages, begin in self._used:
            self._free[pages].append(begin)
        self._used.clear()


def _mapped(pages: int) -> int:
    begin = _LIBC.mmap(None, (pages + 2) * _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | 0x20, -1, 0)
    assert begin not in (None, ctypes.c_void_p(-1).value), "no memory"
    for guard in (begin, begin + (pages + 1) * _PAGE):
        assert _LIBC.mprotect(guard, _PAGE, 0) == 0
    return int(begin) + _PAGE


def _bytes(storage: Any) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


@dataclass(frozen=True, eq=False)
class Before:
    """What a tensor was before a call."""

    tensor: Tensor
    version: int | None
    memory: Tensor | None

    @classmethod
    def of(cls, tensor: Tensor) -> Before:
        return cls(tensor, _version(tensor), _memory(tensor))

    def moved(self) -> bool:
        """Whether the version counter is another one."""
        return _version(self.tensor) != self.version

    def changed(self) -> bool:
        """Whether a byte of the tensor's memory is another one."""
        now = _memory(self.tensor)
        return (now is None) != (self.memory is None) or (now is not None and not torch.equal(now, self.memory))


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _memory(tensor: Tensor) -> Tensor | None:
    """The bytes of its elements; of its storage, if that lacks some of them."""
    if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda") or tensor._is_zerotensor():
        return None
    if tensor.untyped_storage().nbytes() < extent(tensor):
        return _bytes(tensor.untyped_storage()).clone()
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
