"""The memory of tensors: which of it is copied, and when, so that it can be put back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_SMALL = 1 << 20  # bytes


class Memory:
    """The bytes of a storage, with a copy of them or a checksum; ``name`` is that of the first tensor there."""

    def __init__(self, data: Tensor, name: str, size: int, copy: Tensor | None, checksum: int) -> None:
        self.data, self.name, self.size, self.copy, self.checksum = data, name, size, copy, checksum

    @classmethod
    def of(cls, tensor: Tensor, name: str, *, now: bool) -> Memory:
        """That of a tensor, copied if it is small or if that shall be done ``now``."""
        storage = tensor.untyped_storage()
        data = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
        if now or storage.nbytes() <= _SMALL:
            return cls(data, name, storage.nbytes(), data.clone(), 0)
        return cls(data, name, storage.nbytes(), None, _checksum(data))

    def keep(self) -> None:
        """Copy it, unless that is done."""
        if self.copy is None:
            self.copy = self.data.clone()

    def put_back(self) -> None:
        """Write the copy if anything differs from it."""
        storage = self.data.untyped_storage()
        if self.copy is None:
            return
        if storage.nbytes() != self.size:
            storage.resize_(self.size)
        if not torch.equal(self.data, self.copy):
            self.data.copy_(self.copy)

    def is_lost(self) -> bool:
        """Whether its content is another one, of which there was no copy."""
        if self.data.untyped_storage().nbytes() != self.size:
            return True
        return self.copy is None and _checksum(self.data) != self.checksum


def is_plain(tensor: Tensor) -> bool:
    """Whether it has memory of its own that can be read as bytes."""
    known = (Tensor, torch.nn.Parameter, *filter(None, [getattr(torch.nn, "Buffer", None)]))
    return type(tensor) in known and tensor.layout is torch.strided and tensor.device.type in ("cpu", "cuda")


class Watch(TorchDispatchMode):
    """Copies memory when an op is about to write it."""

    supports_higher_order_operators = True

    def __init__(self, memory: dict[int, Memory]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The call of an op, after what it writes has been copied."""
        for tensor in _written(func, args, kwargs or {}):
            if is_plain(tensor):
                found = self.memory.get(tensor.untyped_storage()._cdata)
                if found is not None:
                    found.keep()
        return func(*args, **(kwargs or {}))


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    schema = getattr(func, "_schema", None)  # a higher-order op has none
    for position, argument in enumerate(() if schema is None else schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            values: Iterable[Any] = value if isinstance(value, (list, tuple)) else (value,)
            yield from (one for one in values if isinstance(one, Tensor))


def _checksum(data: Tensor) -> int:
    whole = len(data) - len(data) % 8
    return int(data[:whole].view(torch.int64).sum()) + int(data[whole:].sum())
